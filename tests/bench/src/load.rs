//! Controls the processes that generate the load, by lines of input.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Figures of one job on one path, by the names that the load uses.
pub(super) type Figures = BTreeMap<String, f64>;

/// Longer than any job with all its waits.
const JOB_TIME: Duration = Duration::from_secs(180);

/// A process that contains clients and their backend. Dropping it ends it.
pub(super) struct Load {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Load {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the load")?;
        let input = child.stdin.take().context("stdin")?;
        let output = child.stdout.take().context("stdout")?;
        let (line_tx, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| line_tx.send(line))
        });
        let load = Self {
            child,
            input,
            lines,
        };
        match load.line()?.as_str() {
            "ready" => Ok(load),
            other => bail!("the load said {other:?}"),
        }
    }

    /// Runs a job in it.
    pub(super) fn run(&mut self, job: &str) -> Result<Figures> {
        writeln!(self.input, "{job}")?;
        let line = self.line()?;
        let Value::Object(answer) = serde_json::from_str(&line)? else {
            bail!("the load said {line:?}")
        };
        if let Some(error) = answer.get("error") {
            bail!("{}", error.as_str().unwrap_or_default());
        }
        let mut figures = Figures::new();
        for (name, value) in answer {
            if let Some(value) = value.as_f64() {
                figures.insert(name, value);
            }
        }
        Ok(figures)
    }

    fn line(&self) -> Result<String> {
        self.lines
            .recv_timeout(JOB_TIME)
            .context("the load did not answer")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
