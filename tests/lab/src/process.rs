//! Programs in a lab. Each has its own log, and is ended when it is dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
pub use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::{LogLine, progress, wait};

/// The kernel counts processor time of programs in hundredths of a second.
const TICK_MS: u64 = 10;

/// Kernel resources of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// Open files, including sockets.
    pub files: usize,
    /// Threads.
    pub threads: usize,
}

impl KernelResources {
    /// Whether this is no more than `before`. A pool for blocking work may have one more thread by
    /// chance.
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
    /// Starts a command. Its output is appended to `<folder>/<name>.log`.
    ///
    /// # Errors
    /// The log cannot be created, or the command cannot be started.
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

    /// Its process id in this machine's pid namespace.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it printed.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The lines of its JSON log.
    pub fn log_lines(&self) -> Vec<LogLine> {
        LogLine::parse_all(&self.log())
    }

    /// The lines with this message in its JSON log, with fields that contain these texts.
    pub fn logged(&self, message: &str, fields: &[(&str, &str)]) -> Vec<LogLine> {
        let mut lines = self.log_lines();
        lines.retain(|line| line.is(message, fields));
        lines
    }

    /// Waits until its JSON log has such a line.
    ///
    /// # Errors
    /// It is not there within `patience`; the error contains the log.
    pub fn wait_logged(
        &self,
        message: &str,
        fields: &[(&str, &str)],
        patience: Duration,
    ) -> Result<()> {
        let what = format!("{} logs {message:?} with {fields:?}", self.name);
        wait::until(&what, patience, || {
            let found = !self.logged(message, fields).is_empty();
            ensure!(found, "{}", self.log());
            Ok(())
        })
    }

    /// Fails with the end of its log if it has ended.
    ///
    /// # Errors
    /// It has ended.
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

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .with_context(|| format!("kill {}", self.name))?;
        self.child.wait()?;
        Ok(())
    }

    /// Ends it with SIGTERM, as systemd does, and waits until it has ended.
    ///
    /// # Errors
    /// It has not ended at the deadline.
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

    /// The kernel resources that it holds now.
    ///
    /// # Errors
    /// It has ended.
    pub fn kernel_resources(&self) -> Result<KernelResources> {
        Ok(KernelResources {
            files: self.count_entries("fd")?,
            threads: self.count_entries("task")?,
        })
    }

    /// How many entries a folder of its `/proc/PID` has.
    fn count_entries(&self, folder: &str) -> Result<usize> {
        let folder = format!("/proc/{}/{folder}", self.pid());
        let entries = std::fs::read_dir(&folder).with_context(|| format!("read {folder}"))?;
        Ok(entries.count())
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// It has ended.
    pub fn resident(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// The peak of its resident memory in bytes.
    ///
    /// # Errors
    /// It has ended.
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

    /// Processor time used so far, in user and kernel mode.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The second field is the program's name, which may contain spaces. utime and stime are
        // fields 14 and 15.
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
/// leaves no programs.
pub fn bound(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Prints the ends of all logs below a folder, to debug a failed test.
pub fn show_logs(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            show_logs(&path);
        } else if path.extension().is_some_and(|extension| extension == "log") {
            eprintln!("--- {}\n{}", path.display(), progress::tail(&path, 40));
        }
    }
}
