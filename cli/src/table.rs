//! The one table of this program: aligned columns, with a verdict before each row. On a terminal the
//! last column is wrapped at the edge.

use culvert_site::verdict::Verdict;

use crate::screen::{Screen, clean};

/// Columns between two cells.
const GAP: &str = "  ";
/// The least width that the last column is wrapped to.
const MIN_WIDTH: usize = 20;

/// Rows under a header.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<(Verdict, Vec<String>)>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. The last cell of a row with fewer cells takes the space of the missing ones.
    pub(crate) fn row(&mut self, verdict: Verdict, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| clean(&cell)).collect();
        self.rows.push((verdict, cells));
    }

    /// The lines.
    pub(crate) fn text(&self, screen: &Screen) -> String {
        let widths = self.widths();
        let mut text = String::new();
        let header: Vec<String> = self.header.iter().map(|&title| title.to_owned()).collect();
        add(&mut text, screen, &screen.no_mark(), &widths, &header);
        for (verdict, cells) in &self.rows {
            add(&mut text, screen, &screen.mark(*verdict), &widths, cells);
        }
        text
    }

    /// The width of each column: that of its widest cell. A cell that takes the space of others
    /// does not count.
    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(|title| title.len()).collect();
        for (_, cells) in &self.rows {
            let is_short = cells.len() < widths.len();
            let counted = cells.len() - usize::from(is_short && !cells.is_empty());
            for (width, cell) in widths.iter_mut().zip(&cells[..counted]) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

fn add(text: &mut String, screen: &Screen, mark: &str, widths: &[usize], cells: &[String]) {
    let mut line = mark.to_owned();
    let mut column = screen.mark_width();
    let Some((last, before)) = cells.split_last() else {
        return;
    };
    for (cell, width) in before.iter().zip(widths) {
        line += &format!("{GAP}{cell:width$}");
        column += GAP.len() + width;
    }
    line += GAP;
    column += GAP.len();
    for (index, part) in wrapped(last, screen, column).iter().enumerate() {
        if index > 0 {
            line = " ".repeat(column);
        }
        line += part;
        *text += line.trim_end();
        *text += "\n";
    }
}

/// The text in lines that end before the edge of the terminal, when the first one begins at a
/// column.
pub(crate) fn wrapped(text: &str, screen: &Screen, column: usize) -> Vec<String> {
    let Some(width) = screen.width() else {
        return vec![text.to_owned()];
    };
    let width = width.saturating_sub(column).max(MIN_WIDTH);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        let used = line.chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if used > 0 {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NODE", "TUNNELS", "NOTE"]);
        let cells = |texts: [&str; 3]| texts.map(str::to_owned);
        table.row(Verdict::Ok, cells(["edge-1", "2", "fine"]));
        table.row(
            Verdict::Failure,
            ["edge-10", "no answer within 10 s"].map(str::to_owned),
        );
        table
    }

    #[test]
    fn a_pipe_has_words_and_no_colour() {
        assert_eq!(
            table().text(&Screen::file()),
            "         NODE     TUNNELS  NOTE\n\
             ok       edge-1   2        fine\n\
             FAILURE  edge-10  no answer within 10 s\n"
        );
    }

    #[test]
    fn a_terminal_has_marks_and_is_not_exceeded() {
        let mut table = table();
        let long = "a text that is longer than what is left of the line";
        table.row(Verdict::Warning, ["edge-2", "1", long].map(str::to_owned));
        let text = table.text(&Screen::terminal(40));
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(text.contains('✓') && text.contains('×'), "{text}");
        assert!(text.contains('\u{1b}'), "{text}");
        for line in plain.lines() {
            assert!(line.chars().count() <= 40, "{plain}");
        }
        assert!(plain.contains("left of the"), "{plain}");
    }

    #[test]
    fn what_others_say_cannot_move_the_cursor() {
        let mut table = Table::new(&["A"]);
        table.row(Verdict::Ok, ["\u{1b}[2Jgone\n".to_owned()]);
        let text = table.text(&Screen::file());
        assert!(
            !text.contains('\u{1b}') && text.lines().count() == 2,
            "{text:?}"
        );
    }
}
