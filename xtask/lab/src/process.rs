//! Programs that run in a lab: each with a log of its own, ended when it is dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{progress, wait};

/// The kernel counts processor time for programs in hundredths of a second.
const TICK_MS: u64 = 10;

/// What a program holds of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Open files, sockets among them.
    pub files: usize,
    /// Threads.
    pub threads: usize,
}

impl Held {
    /// Whether this is no more than `before`. A pool for blocking work keeps a thread more or less,
    /// as its tasks happen to meet.
    #[must_use]
    pub fn is_within(self, before: Self) -> bool {
        self.files <= before.files && self.threads <= before.threads + 2
    }
}

/// A program in the background.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command; what it prints goes to `<folder>/<name>.log`, behind what an earlier one
    /// of that name printed.
    ///
    /// # Errors
    /// Those of creating the log and of starting the command.
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Its number, seen from this machine.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it printed.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Fails if it has ended, with the end of its log.
    ///
    /// # Errors
    /// If it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!(
                    "{} ended with {status}; its log ends:\n{}",
                    self.name,
                    progress::tail(&self.log, 15)
                )
            }
        }
    }

    /// Ends it as `kill -9` does.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .with_context(|| format!("kill {}", self.name))?;
        self.child.wait()?;
        Ok(())
    }

    /// Asks it to end, as systemd does, and waits until it has.
    ///
    /// # Errors
    /// If it is not gone in time.
    pub fn terminate(&mut self, deadline: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let name = self.name.clone();
        wait::until(
            &format!("{name} ends after SIGTERM"),
            deadline,
            || match self.child.try_wait()? {
                Some(_) => Ok(()),
                None => bail!("it runs on"),
            },
        )
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.pid())?), signal)
            .with_context(|| format!("send {signal} to {}", self.name))
    }

    /// What it holds of the kernel now.
    ///
    /// # Errors
    /// If it has ended.
    pub fn held(&self) -> Result<Held> {
        let count = |what: &str| {
            let folder = format!("/proc/{}/{what}", self.pid());
            anyhow::Ok(
                std::fs::read_dir(&folder)
                    .with_context(|| format!("read {folder}"))?
                    .count(),
            )
        };
        Ok(Held {
            files: count("fd")?,
            threads: count("task")?,
        })
    }

    /// Bytes of memory that it has resident now.
    ///
    /// # Errors
    /// If it has ended.
    pub fn resident(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most bytes of memory that it ever had resident.
    ///
    /// # Errors
    /// If it has ended.
    pub fn peak_resident(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .with_context(|| format!("no {field}"))?;
        let kib: u64 = line
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .with_context(|| format!("{field}{line}"))?;
        Ok(kib << 10)
    }

    /// Processor time that it has used so far, in user and kernel mode.
    ///
    /// # Errors
    /// If it has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The second field is the program's name, which may hold blanks; utime and stime are the
        // 14th and 15th.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = fields
            .get(11..13)
            .context("too few fields")?
            .iter()
            .map(|ticks| ticks.parse::<u64>());
        let ticks: u64 = ticks.sum::<Result<_, _>>().with_context(|| stat.clone())?;
        Ok(Duration::from_millis(ticks * TICK_MS))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A program that the kernel ends when the thread that started it ends, so that a killed test
/// leaves none behind.
pub fn bound(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Prints the ends of all logs below a folder: what a failed test leaves to look at.
pub fn show_logs(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            show_logs(&path);
        } else if path.extension().is_some_and(|extension| extension == "log") {
            eprintln!("--- {}\n{}", path.display(), progress::tail(&path, 40));
        }
    }
}
