//! One picture of the terminal.

use culvert_site::board::Board;
use culvert_site::history::History;
use culvert_site::host_path::HostPath;
use culvert_site::node_choice::Sort;
use culvert_site::site::Site;
use culvert_site::units::time_of_day;
use culvert_site::verdict::Verdict;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, Wrap};

use super::choice::{Only, Tab};
use super::rows::{per_second, rows};
use super::view::{Overlay, TopView};
use crate::screen::clean;

const KEYS: &str =
    " 1-3 tab  ↑↓ move  s sort  / filter  i only what needs a look  Enter why  q quit";
const SOFT: Style = Style::new().fg(Color::DarkGray);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the board as the reader has chosen.
pub(crate) fn draw(frame: &mut Frame<'_>, board: &Board, view: &mut TopView) {
    let [head, tabs, table, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(tab_line(view)), tabs);
    frame.render_widget(Paragraph::new(KEYS).style(SOFT), foot);
    let Some(site) = &board.site else {
        frame.render_widget(Paragraph::new(" the hosts are being asked"), head);
        return;
    };
    frame.render_widget(Paragraph::new(head_line(site, &board.history)), head);
    draw_table(frame, table, site, &board.history, view);
    draw_overlay(frame, table, &view.overlay);
}

fn colour(verdict: Verdict) -> Color {
    match verdict {
        Verdict::Ok => Color::Green,
        Verdict::Warning => Color::Yellow,
        Verdict::Failure => Color::Red,
    }
}

fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "✓",
        Verdict::Warning => "!",
        Verdict::Failure => "×",
    }
}

/// What is counted.
fn head_line(site: &Site, history: &History) -> Line<'static> {
    let status = &site.status;
    let all = status.nodes.online + status.nodes.offline;
    let bytes = history.bytes.newest().map_or(0.0, f64::from);
    let ended = history.ended.newest().unwrap_or(0.0);
    let state = Style::new()
        .fg(colour(status.verdict))
        .add_modifier(Modifier::BOLD);
    Line::from(vec![
        Span::styled(format!(" {} culvert", sign(status.verdict)), state),
        Span::raw(format!(
            "  nodes {}/{all}  streams {} ({} wait)  {}  {ended:.1} ended/s  ",
            status.nodes.online,
            status.streams.running,
            status.streams.waiting,
            per_second(bytes),
        )),
        Span::styled(format!("{}Z", time_of_day(site.seconds)), SOFT),
    ])
}

fn tab_line(view: &TopView) -> Line<'static> {
    let mut spans = Vec::new();
    for (tab, key, name) in Tab::ALL {
        let style = if tab == view.choice.tab {
            STRONG.add_modifier(Modifier::REVERSED)
        } else {
            SOFT
        };
        spans.push(Span::styled(format!(" {key} {name} "), style));
    }
    spans.push(Span::styled(format!("  {}", order(view)), SOFT));
    if view.is_filtering || !view.choice.filter.is_empty() {
        let cursor = if view.is_filtering { "▏" } else { "" };
        spans.push(Span::styled(
            format!("  /{}{cursor}", view.choice.filter),
            STRONG,
        ));
    }
    Line::from(spans)
}

/// For people.
fn order(view: &TopView) -> String {
    let sort = match (view.choice.sort, view.choice.tab) {
        (Sort::Worst, Tab::Streams) => "waiting first",
        (Sort::Worst, _) => "worst first",
        (Sort::Name, _) => "by name",
        (Sort::Far, Tab::Streams) => "oldest first",
        (Sort::Far, _) => "longest round trip first",
        (Sort::Busy, Tab::Streams) => "most bytes first",
        (Sort::Busy, _) => "most streams first",
    };
    let sort = if view.choice.tab == Tab::Proxies {
        ""
    } else {
        sort
    };
    let only = match (view.choice.only, view.choice.tab) {
        (Only::All, _) => "",
        (Only::Idle, Tab::Streams) => ", idle only",
        (Only::Idle, _) => ", with a problem only",
    };
    format!("{sort}{only}")
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    site: &Site,
    history: &History,
    view: &mut TopView,
) {
    let all = rows(site, history, &view.choice);
    if all.rows.is_empty() {
        frame.render_widget(Paragraph::new(" nothing is like that").style(SOFT), area);
        return;
    }
    let mut header = vec![Cell::from("")];
    for title in &all.header {
        header.push(Cell::from(*title));
    }
    let mut widths = vec![Constraint::Length(1)];
    widths.extend(all.widths);
    let shown = all.rows.into_iter().map(|row| {
        let mark = Cell::from(sign(row.verdict)).style(Style::new().fg(colour(row.verdict)));
        let mut cells = vec![mark];
        cells.extend(row.cells.into_iter().map(Cell::from));
        Row::new(cells)
    });
    let table = Table::new(shown, widths)
        .header(Row::new(header).style(SOFT))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut view.table);
}

/// What is asked, or what the hosts say.
fn draw_overlay(frame: &mut Frame<'_>, area: Rect, overlay: &Overlay) {
    let (destination, lines) = match overlay {
        Overlay::Nothing => return,
        Overlay::Asking(destination) => (destination, vec![Line::from("asking all hosts …")]),
        Overlay::Ways(destination, ways) => (destination, way_lines(ways)),
    };
    let title = format!(" why {} · any key goes back ", clean(destination));
    let block = Block::bordered().title(title);
    let text = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .block(block);
    frame.render_widget(Clear, area);
    frame.render_widget(text, area);
}

fn way_lines(ways: &[HostPath]) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for way in ways {
        lines.push(Line::styled(format!("from {}", clean(&way.host)), STRONG));
        for hop in &way.hops {
            let verdict = if hop.ok {
                Verdict::Ok
            } else {
                Verdict::Failure
            };
            let mark = format!("  {} ", sign(verdict));
            lines.push(Line::from(vec![
                Span::styled(mark, Style::new().fg(colour(verdict))),
                Span::raw(format!("{:<11}{}", clean(&hop.hop), clean(&hop.text))),
            ]));
        }
        for fix in &way.fixes {
            lines.push(Line::from(format!("    {:<11}{}", "fix", clean(fix))));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use culvert_site::testing::{board, node_name};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::top::view::Action;

    fn shown(board: &Board, view: &mut TopView) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).expect("a terminal");
        let drawn = terminal.draw(|frame| draw(frame, board, view));
        drawn.expect("it is drawn");
        terminal.backend().to_string()
    }

    fn press(view: &mut TopView, board: &Board, keys: &str) -> Action {
        let mut action = Action::Nothing;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                letter => KeyCode::Char(letter),
            };
            action = view.press(KeyEvent::new(code, KeyModifiers::NONE), board);
        }
        action
    }

    #[test]
    fn each_tab_shows_its_own_and_the_head_counts_all() {
        let board = board(26);
        let mut view = TopView::default();
        let nodes = shown(&board, &mut view);
        assert!(nodes.contains("nodes 24/26"), "{nodes}");
        assert!(
            nodes.contains("edge-2 ") && nodes.contains("offline"),
            "{nodes}"
        );
        press(&mut view, &board, "2");
        let streams = shown(&board, &mut view);
        let first = streams.lines().nth(3).unwrap_or_default();
        assert!(
            first.contains("edge-9:22") && first.contains('!'),
            "{streams}"
        );
        assert!(streams.contains("KiB/s"), "{streams}");
        press(&mut view, &board, "3");
        let proxies = shown(&board, &mut view);
        for host in ["cloud-1", "cloud-2", "cloud-3"] {
            assert!(proxies.contains(host), "{proxies}");
        }
    }

    #[test]
    fn a_filter_leaves_what_has_its_text_and_keys_go_to_it_until_enter() {
        let board = board(26);
        let mut view = TopView::default();
        assert_eq!(press(&mut view, &board, "/edge-7q\n"), Action::Nothing);
        assert!(shown(&board, &mut view).contains("nothing is like that"));
        view.choice.filter = "edge-7".to_owned();
        let nodes = shown(&board, &mut view);
        assert!(
            nodes.contains("edge-7 ") && !nodes.contains("edge-8 "),
            "{nodes}"
        );
        assert_eq!(press(&mut view, &board, "q"), Action::Quit);
    }

    #[test]
    fn what_needs_a_look_is_left_alone_by_its_key() {
        let board = board(26);
        let mut view = TopView::default();
        press(&mut view, &board, "i");
        let nodes = shown(&board, &mut view);
        assert!(
            nodes.contains("edge-2 ") && !nodes.contains("edge-1 "),
            "{nodes}"
        );
    }

    #[test]
    fn enter_asks_about_the_chosen_row_and_shows_the_answer() {
        let board = board(26);
        let mut view = TopView::default();
        press(&mut view, &board, "s");
        shown(&board, &mut view);
        let Action::Explain(request) = press(&mut view, &board, "jj\n") else {
            panic!("{view:?}");
        };
        assert!(request.destination.starts_with("edge-"), "{request:?}");
        assert!(!request.dial);
        view.overlay = Overlay::Ways(request.destination, Vec::new());
        let answer = shown(&board, &mut view);
        assert!(answer.contains("why edge-"), "{answer}");
        press(&mut view, &board, "x");
        assert!(shown(&board, &mut view).contains(&node_name(0)));
    }

    #[test]
    fn what_others_say_cannot_move_the_cursor() {
        let mut board = board(3);
        if let Some(site) = &mut board.site {
            site.nodes[0].node = "\u{1b}[2J".to_owned();
        }
        let nodes = shown(&board, &mut TopView::default());
        assert!(!nodes.contains('\u{1b}'), "{nodes:?}");
    }
}
