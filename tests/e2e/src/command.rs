//! Commands with a deadline, and commands in the background. Each is a process group of its own, so
//! that everything that it started ends with it: the program that creates clusters is a script,
//! whose children would otherwise continue.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::{interrupt, progress, wait};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The output and status of a command that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

impl Finished {
    /// What it printed, if it succeeded.
    pub(super) fn success(self) -> Result<String> {
        ensure!(
            self.status.success(),
            "{}: {}{}",
            self.status,
            self.out,
            self.err.trim()
        );
        Ok(self.out)
    }
}

/// Runs a command to its end, at most for `deadline`.
pub(super) fn finish(command: &mut Command, deadline: Duration) -> Result<Finished> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = Group(child.with_context(|| format!("start {:?}", command.get_program()))?);
    let out = child.0.stdout.take();
    let err = child.0.stderr.take();
    std::thread::scope(|scope| {
        let out = scope.spawn(|| read(out));
        let err = scope.spawn(|| read(err));
        let status = child.wait(deadline);
        // At the deadline this ends the processes that still hold the pipes, for which the readers
        // would wait.
        drop(child);
        let out = out.join().unwrap_or_default();
        let err = err.join().unwrap_or_default();
        match status? {
            Some(status) => Ok(Finished { status, out, err }),
            None => bail!("no end within {deadline:?}; so far it said: {out}{err}"),
        }
    })
}

/// What a command prints that succeeds within `deadline`.
pub(super) fn output(command: &mut Command, deadline: Duration) -> Result<String> {
    finish(command, deadline)?.success()
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // An error means the end, as when a process was killed.
    pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process group. Dropping it ends the group, unless its first process has ended by itself: then
/// the others are meant to stay, such as a restarted kube-apiserver.
struct Group(Child);

impl Group {
    /// Its status; `None` at the deadline.
    fn wait(&mut self, deadline: Duration) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            interrupt::check()?;
            if started.elapsed() >= deadline {
                return Ok(None);
            }
            wait::pause();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        // It may end by itself at this moment.
        if let Ok(pid) = i32::try_from(self.0.id()) {
            killpg(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        self.0.wait().ok();
    }
}

/// A command in the background that accepts input. Its output goes to a file. Dropping it ends it.
pub(super) struct Running {
    what: String,
    group: Group,
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Running {
    /// Starts it. Its output goes to `<folder>/<what>.log`.
    pub(super) fn start(folder: &Path, what: &str, command: &mut Command) -> Result<Self> {
        let log = folder.join(format!("{what}.log"));
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command
            .stdin(Stdio::piped())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("start {what}"))?;
        let stdin = child.stdin.take();
        Ok(Self {
            what: what.to_owned(),
            group: Group(child),
            stdin,
            log,
        })
    }

    /// Everything that it printed so far.
    pub(super) fn said(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Writes to its standard input.
    pub(super) fn send(&mut self, text: &str) -> Result<()> {
        let stdin = self
            .stdin
            .as_mut()
            .context("its standard input is closed")?;
        stdin
            .write_all(text.as_bytes())
            .with_context(|| format!("write to {}", self.what))?;
        stdin
            .flush()
            .with_context(|| format!("write to {}", self.what))
    }

    /// Waits until its output satisfies `check`.
    pub(super) fn wait_until<T>(
        &mut self,
        what: &str,
        deadline: Duration,
        mut look: impl FnMut(&str) -> Result<T>,
    ) -> Result<T> {
        wait::until(&format!("{}: {what}", self.what), deadline, || {
            let said = self.said();
            look(&said).with_context(|| format!("it said last: {}", progress::tail(&self.log, 3)))
        })
    }

    /// Waits until it printed `text`.
    pub(super) fn wait_for(&mut self, text: &str, deadline: Duration) -> Result<()> {
        self.wait_until(&format!("{text:?}"), deadline, |said| {
            ensure!(said.contains(text), "not yet");
            Ok(())
        })
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.group.0.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended with {status}; it said last: {}",
                self.what,
                progress::tail(&self.log, 5)
            ),
        }
    }

    /// Waits until it ends by itself.
    pub(super) fn end(mut self, deadline: Duration) -> Result<Finished> {
        drop(self.stdin.take());
        let status = self.group.wait(deadline)?;
        let out = self.said();
        let status = status.with_context(|| {
            format!("{}: no end within {deadline:?}; it said: {out}", self.what)
        })?;
        Ok(Finished {
            status,
            out,
            err: String::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_ends_a_command_with_all_that_it_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo early; sleep 600 & wait"]);
        let error = finish(&mut command, Duration::from_millis(300))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no end") && error.contains("early"),
            "{error}"
        );
    }

    #[test]
    fn an_exit_code_and_both_outputs_are_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 7"]);
        let done = finish(&mut command, Duration::from_secs(30)).unwrap();
        assert_eq!(
            (done.status.code(), done.out.as_str(), done.err.as_str()),
            (Some(7), "out\n", "err\n")
        );
        assert!(done.success().is_err());
    }
}
