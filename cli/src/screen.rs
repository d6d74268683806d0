//! What the output is: a terminal with colour and marks, or a file or pipe with words.

use std::io::{IsTerminal, Write, stdout};

use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result};
use culvert_site::verdict::Verdict;

/// The width of a terminal that does not say its own.
const USUAL_WIDTH: usize = 80;

/// How text is shown. Colours are taken out again where they are not wanted (NO_COLOR, no terminal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Columns of a terminal; `None`: no terminal.
    width: Option<usize>,
}

impl Screen {
    /// The screen that standard output leads to.
    pub(crate) fn of_output() -> Self {
        if !stdout().is_terminal() {
            return Self::file();
        }
        let size = terminal_size::terminal_size();
        let width = size.map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0));
        Self::terminal(width)
    }

    /// A terminal of so many columns.
    pub(crate) fn terminal(width: usize) -> Self {
        Self { width: Some(width) }
    }

    /// A file or a pipe.
    pub(crate) fn file() -> Self {
        Self { width: None }
    }

    /// Columns of the terminal, if it is one.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// The mark of a verdict, as wide as the widest one: a sign on a terminal, a word elsewhere.
    pub(crate) fn mark(&self, verdict: Verdict) -> String {
        let width = self.mark_width();
        if self.width.is_none() {
            let word = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warning",
                Verdict::Failure => "FAILURE",
            };
            return format!("{word:width$}");
        }
        let sign = match verdict {
            Verdict::Ok => "✓",
            Verdict::Warning => "!",
            Verdict::Failure => "×",
        };
        let colour = match verdict {
            Verdict::Ok => AnsiColor::Green,
            Verdict::Warning => AnsiColor::Yellow,
            Verdict::Failure => AnsiColor::Red,
        };
        let style = Style::new().fg_color(Some(colour.into())).bold();
        format!("{style}{sign}{style:#}")
    }

    /// In place of a mark.
    pub(crate) fn no_mark(&self) -> String {
        " ".repeat(self.mark_width())
    }

    /// Columns that a mark takes.
    pub(crate) fn mark_width(&self) -> usize {
        if self.width.is_some() {
            1
        } else {
            "FAILURE".len()
        }
    }

    /// Prints a text.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn print(&self, text: &str) -> Result<()> {
        let mut out = anstream::stdout();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .context("write to standard output")
    }
}

/// A text of others without what a terminal would act on.
pub(crate) fn clean(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}
