//! Progress of a task for the person who watches: the running step, its duration, and its last
//! output.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{interrupt, wait, workspace};

/// Interval of reminders during a long step.
const REMINDER: Duration = Duration::from_secs(5);

/// Announces the start of a step, and its duration at the end.
pub struct Step {
    what: String,
    started: Instant,
}

impl Step {
    /// Announces the step.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        say(&format!("==> {what}"));
        Self {
            what,
            started: Instant::now(),
        }
    }

    /// Announces the end of the step.
    pub fn done(self) {
        say(&format!(
            "    {} took {:.1} s",
            self.what,
            self.started.elapsed().as_secs_f32()
        ));
    }
}

/// When a line was printed last.
static SAID: Mutex<Option<Instant>> = Mutex::new(None);

/// Prints one line.
pub fn say(line: &str) {
    eprintln!("{line}");
    *SAID.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
}

/// How long no line was printed; zero before the first one.
pub(crate) fn silent_for() -> Duration {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.map_or(Duration::ZERO, |said| said.elapsed())
}

/// Runs a command that takes long. Its output goes to a log file; every few seconds its last line
/// is shown. Returns the log.
///
/// # Errors
/// It cannot be started, it fails (with the end of its log), or it was interrupted, which ends the
/// command.
pub fn run(what: &str, command: &mut Command) -> Result<PathBuf> {
    let step = Step::start(what);
    let folder = workspace::target_dir().join("logs");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let log = folder.join(format!("{}.log", file_name(what)));
    let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    let mut reminded = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(interrupted) = interrupt::check() {
            child.kill()?;
            child.wait()?;
            return Err(interrupted);
        }
        if reminded.elapsed() >= REMINDER {
            reminded = Instant::now();
            let seconds = step.started.elapsed().as_secs();
            say(&format!("    {seconds} s: {:.100}", tail(&log, 1)));
        }
        wait::pause();
    };
    if !status.success() {
        bail!(
            "{what} ended with {status}; its output ({}) ends:\n{}",
            log.display(),
            tail(&log, 30)
        );
    }
    step.done();
    Ok(log)
}

fn file_name(what: &str) -> String {
    what.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(40)
        .collect()
}

/// The last lines of a file, without cargo's messages for programs; empty if it cannot be read.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let all: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with("{\"reason\""))
        .collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
