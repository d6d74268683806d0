//! Programs of another host, by the ssh of this one: with its keys, agents and configuration.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::{self, Poll, ready};
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_api::shell_word;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::child_input::ChildInput;
use super::{Connection, Finished, NoAnswer};

/// Connections with one host that are not logged in yet: sshd refuses some of more than 10
/// (`MaxStartups 10:30:100`), and is not for this program alone.
const MAX_STARTUPS: usize = 6;

/// A host as ssh takes it.
#[derive(Debug)]
pub(super) struct Ssh {
    host: String,
    connect_timeout: Duration,
    startups: Arc<Semaphore>,
}

impl Ssh {
    /// A host, and how long a connection with it may take.
    pub(super) fn new(host: &str, connect_timeout: Duration) -> Self {
        Self {
            host: host.to_owned(),
            connect_timeout,
            startups: Arc::new(Semaphore::new(MAX_STARTUPS)),
        }
    }

    pub(super) async fn connect(&self, words: &[&str]) -> Result<Connection, NoAnswer> {
        let startup = self.startup().await?;
        let mut child = self.spawn(words)?;
        let parts = (child.stdout.take(), child.stdin.take(), child.stderr.take());
        let (Some(out), Some(input), Some(errors)) = parts else {
            return Err(NoAnswer::new("ssh has no standard streams".to_owned()));
        };
        let out = Output {
            out,
            startup: Some(startup),
        };
        let stream = tokio::io::join(out, ChildInput::new(input));
        Ok(Connection::through(child, stream, errors))
    }

    pub(super) async fn run(&self, words: &[String]) -> Result<Finished, NoAnswer> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _startup = self.startup().await?;
        Finished::of(self.command(&words).stdin(Stdio::null())).await
    }

    async fn startup(&self) -> Result<OwnedSemaphorePermit> {
        let startup = self.startups.clone().acquire_owned().await;
        startup.context("ssh is not run any more")
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
        // It must ask no questions: several run at once.
        command
            .args(["-T", "-o", "BatchMode=yes", "-o"])
            .arg(format!("ConnectTimeout={seconds}"))
            .arg(&self.host)
            .arg(line(words));
        command
    }
}

/// What comes from a host. Once something has come, the connection is logged in.
struct Output<R> {
    out: R,
    startup: Option<OwnedSemaphorePermit>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Output<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.out).poll_read(context, bytes));
        self.startup = None;
        Poll::Ready(read)
    }
}

/// The words for the shell of the other host.
fn line(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| shell_word(word)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_connection_is_in_the_way_of_others_until_something_has_come() -> Result<()> {
        let ssh = Ssh::new("cloud-1", Duration::from_secs(1));
        let (mut host, out) = duplex(64);
        let mut output = Output {
            out,
            startup: Some(ssh.startup().await?),
        };
        assert_eq!(ssh.startups.available_permits(), MAX_STARTUPS - 1);
        host.write_all(b"x").await?;
        output.read_u8().await?;
        assert_eq!(ssh.startups.available_permits(), MAX_STARTUPS);
        Ok(())
    }
}
