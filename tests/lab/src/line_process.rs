//! A process that acts on lines of its standard input, and prints lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The process. Dropping it kills it.
pub struct LineProcess {
    child: Child,
    input: ChildStdin,
    lines: Receiver<(Instant, String)>,
}

impl LineProcess {
    /// Starts a process.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("start {command:?}"))?;
        let input = child.stdin.take().context("stdin")?;
        let output = child.stdout.take().context("stdout")?;
        let (line_tx, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| line_tx.send((Instant::now(), line)))
        });
        Ok(Self {
            child,
            input,
            lines,
        })
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its input.
    ///
    /// # Errors
    /// The process has ended.
    pub fn send(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").context("write to a process")
    }

    /// The next line of its output.
    ///
    /// # Errors
    /// None comes in time.
    pub fn line(&self, deadline: Duration) -> Result<String> {
        self.timed_line(deadline).map(|(_, line)| line)
    }

    /// The next line of its output, and when it came.
    ///
    /// # Errors
    /// None comes in time.
    pub fn timed_line(&self, deadline: Duration) -> Result<(Instant, String)> {
        let line = self.lines.recv_timeout(deadline);
        line.context("the process printed nothing in time")
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
