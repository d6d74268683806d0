//! What a program prints when its name is typed on a terminal without arguments. A daemon that
//! started then would change the kernel, or make an authority, though the user only wanted to see
//! what it is.

use std::fmt::Write as _;
use std::io::{IsTerminal, stderr, stdin, stdout};

use clap::Command;

/// A program, for those who do not know it yet.
#[derive(Clone, Copy, Debug)]
pub struct Introduction {
    /// The usual first commands, after the program's name, and what they do.
    pub first_commands: &'static [(&'static str, &'static str)],
    /// Where to read on: pages of the documents.
    pub pages: &'static str,
}

impl Introduction {
    /// The text for a terminal. The first sentences are those of `--help`.
    pub(crate) fn text(&self, program: &Command) -> String {
        let name = program.get_name();
        let version = program.get_version().unwrap_or_default();
        let mut text = format!("{name} {version}\n");
        if let Some(about) = program.get_about() {
            _ = writeln!(text, "{about}");
        }
        text.push_str("\nFirst commands:\n");
        let lengths = self.first_commands.iter().map(|(words, _)| words.len());
        let width = lengths.max().unwrap_or_default();
        for (words, what) in self.first_commands {
            _ = writeln!(text, "  {name} {words:width$}  {what}");
        }
        _ = writeln!(
            text,
            "\nAll subcommands and flags: {name} --help\nMore: {}",
            self.pages
        );
        text
    }
}

/// Whether a person is at the other end of all three standard streams. A service, a container and a
/// script have another kind of at least one.
pub(crate) fn is_on_a_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal() && stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_introduction_has_the_sentences_of_the_help_and_each_first_command() {
        let program = Command::new("culvert-x").version("1.2").about("Does x.");
        let introduction = Introduction {
            first_commands: &[("run", "starts it"), ("check", "looks")],
            pages: "docs/x.md",
        };
        let text = introduction.text(&program);
        for part in [
            "culvert-x 1.2\n",
            "Does x.\n",
            "  culvert-x run    starts it\n",
            "  culvert-x check  looks\n",
            "culvert-x --help\n",
            "docs/x.md\n",
        ] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }
}
