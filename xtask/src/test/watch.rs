//! Runs a suite to its end, shows what it prints, and stops it when it prints nothing for long.

use std::io::{PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use culvert_lab::{interrupt, progress, stacks};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// The pause between two checks of whether the suite has ended.
const PAUSE: Duration = Duration::from_millis(50);

/// Time for the last output to arrive. A process that outlives its suite may hold the pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// How a suite ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) how: End,
    /// Everything that it printed, both outputs together.
    pub(super) output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Success,
    Failure,
    /// It was stopped, because it printed nothing for too long.
    Silent,
    /// It was stopped, because this program was interrupted.
    Interrupted,
}

/// Runs a command to its end, and shows what it prints. One that prints nothing for as long as `silence` is stopped, with all
/// that it started; the stacks of these processes are part of the output. An interrupt of this
/// program stops it too.
///
/// # Errors
/// It cannot be started.
pub(super) fn watch(
    mut command: Command,
    silence: Duration,
    shown: &mut dyn Write,
) -> Result<Ended> {
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    let child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("share a pipe")?)
        .stderr(writer)
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    // It has the ends of the pipe that are written to, and so would never let the reader end.
    drop(command);
    let (chunk_tx, chunk_rx) = sync_channel(64);
    // It ends with the last process that holds the pipe, or with the receiver.
    std::thread::spawn(move || pass_on(reader, &chunk_tx));
    let mut suite = Running {
        child,
        shown,
        output: Vec::new(),
    };
    let how = suite.wait(&chunk_rx, silence)?;
    suite.receive_rest(&chunk_rx);
    Ok(Ended {
        how,
        output: String::from_utf8_lossy(&suite.output).into_owned(),
    })
}

fn pass_on(mut reader: PipeReader, chunk_tx: &SyncSender<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = reader.read(&mut buffer) {
        if chunk_tx.send(buffer[..length].to_vec()).is_err() {
            return;
        }
    }
}

/// A suite that runs.
struct Running<'a> {
    child: Child,
    shown: &'a mut dyn Write,
    output: Vec<u8>,
}

impl Running<'_> {
    fn wait(&mut self, chunk_rx: &Receiver<Vec<u8>>, silence: Duration) -> Result<End> {
        let mut printed = Instant::now();
        loop {
            match chunk_rx.recv_timeout(PAUSE) {
                Ok(chunk) => {
                    printed = Instant::now();
                    self.record(&chunk);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE),
            }
            if let Some(status) = self.child.try_wait().context("wait for a suite")? {
                return Ok(End::from(status));
            }
            if interrupt::check().is_err() {
                self.stop();
                return Ok(End::Interrupted);
            }
            if printed.elapsed() >= silence {
                let pids = stacks::with_descendants(self.pid());
                let text = format!(
                    "\nstopped: it printed nothing for {} s; the stacks of its processes:\n{}",
                    silence.as_secs(),
                    stacks::of(&pids)
                );
                self.record(text.as_bytes());
                self.stop();
                return Ok(End::Silent);
            }
        }
    }

    /// Receives what was printed last.
    fn receive_rest(&mut self, chunk_rx: &Receiver<Vec<u8>>) {
        let deadline = Instant::now() + LAST_OUTPUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match chunk_rx.recv_timeout(left) {
                Ok(chunk) if !left.is_zero() => self.record(&chunk),
                _ => return,
            }
        }
    }

    /// Shows a piece of output, and adds it to the rest.
    fn record(&mut self, chunk: &[u8]) {
        // The watcher may have gone.
        self.shown.write_all(chunk).ok();
        self.shown.flush().ok();
        self.output.extend_from_slice(chunk);
    }

    /// Kills the suite with everything that it started.
    fn stop(&mut self) {
        let pids = stacks::with_descendants(self.pid());
        killpg(Pid::from_raw(self.pid()), Signal::SIGKILL).ok();
        for pid in pids {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
        if let Err(error) = self.child.wait() {
            progress::say(&format!("wait for a suite that was killed: {error}"));
        }
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        if status.success() {
            Self::Success
        } else {
            Self::Failure
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;
    use culvert_lab::wait;

    use super::*;

    /// Runs a script, and returns how it ended, with what was shown of it.
    fn run(script: &str, silence: Duration) -> (Ended, String) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut shown = Vec::new();
        let ended = watch(command, silence, &mut shown).unwrap();
        (ended, String::from_utf8(shown).unwrap())
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn both_outputs_and_the_end_of_a_suite_are_known() {
        let (ended, shown) = run("echo out; echo err >&2; exit 3", LONG);
        assert_eq!(
            (ended.how, ended.output.as_str()),
            (End::Failure, "out\nerr\n")
        );
        assert_eq!(shown, "out\nerr\n");
        assert_eq!(run("true", LONG).0.how, End::Success);
    }

    #[test]
    fn a_silent_suite_is_stopped_with_its_children_and_their_stacks_are_printed() {
        let script = "echo begins; setsid sleep 86395 & wait";
        let (ended, _) = run(script, Duration::from_secs(2));
        assert_eq!(ended.how, End::Silent);
        assert!(ended.output.starts_with("begins\n"), "{}", ended.output);
        let line = ended
            .output
            .lines()
            .find(|line| line.ends_with("sleep 86395"));
        let pid = line.and_then(|line| line.strip_prefix("process ")?.split_once(':'));
        let (pid, _) = pid.unwrap_or_else(|| panic!("no sleep in {}", ended.output));
        wait::until("it is gone", LONG, || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // It may not have been reaped yet.
            ensure!(stat.is_empty() || stat.contains(") Z "), "{stat}");
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_suite_that_leaves_a_process_with_its_output_ends_all_the_same() {
        let script = "echo before; (while sleep 0.01; do echo more; done) & exit 0";
        // The end of the script's reader ends the process.
        let (ended, _) = run(script, LONG);
        assert_eq!(ended.how, End::Success);
        assert!(ended.output.starts_with("before\n"), "{}", ended.output);
    }
}
