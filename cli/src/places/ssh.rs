//! Programs of another host, by the ssh of this one: with its keys, agents and configuration.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_api::shell_word;
use tokio::process::{Child, Command};

use super::child_input::ChildInput;
use super::{Connection, Finished, NoAnswer};

/// A host as ssh takes it.
#[derive(Debug)]
pub(super) struct Ssh {
    host: String,
    connect_timeout: Duration,
}

impl Ssh {
    /// A host, and how long a connection with it may take.
    pub(super) fn new(host: &str, connect_timeout: Duration) -> Self {
        Self {
            host: host.to_owned(),
            connect_timeout,
        }
    }

    pub(super) fn connect(&self, words: &[&str]) -> Result<Connection, NoAnswer> {
        let mut child = self.spawn(words)?;
        let parts = (child.stdout.take(), child.stdin.take(), child.stderr.take());
        let (Some(out), Some(input), Some(errors)) = parts else {
            return Err(NoAnswer::new("ssh has no standard streams".to_owned()));
        };
        let stream = tokio::io::join(out, ChildInput::new(input));
        Ok(Connection::through(child, stream, errors))
    }

    pub(super) async fn run(&self, words: &[String]) -> Result<Finished, NoAnswer> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Finished::of(self.command(&words).stdin(Stdio::null())).await
    }

    fn spawn(&self, words: &[&str]) -> Result<Child> {
        let mut command = self.command(words);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command.spawn().context("run ssh")
    }

    fn command(&self, words: &[&str]) -> Command {
        let seconds = self.connect_timeout.as_secs().max(1);
        let mut command = Command::new("ssh");
        // Nobody is there to answer questions: several run at once.
        command
            .args(["-T", "-o", "BatchMode=yes", "-o"])
            .arg(format!("ConnectTimeout={seconds}"))
            .arg(&self.host)
            .arg(line(words));
        command
    }
}

/// The words for the shell of the other host.
fn line(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
    words.join(" ")
}
