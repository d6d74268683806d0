//! The table `inet culvert-keeper`, which keeps translated connections through a `nft flush ruleset`.
//! With the last rule that needs it, the kernel's translation ends for connections that are
//! established too: what they send before the table is back makes them hang for good.
//!
//! The table changes no packet. It has a rule that needs the translation, and no other program can
//! flush it, because an `nft` that runs as long as the redirector owns it (Linux 5.12). It ends
//! with that.

use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// What the owner reads. The listing is its answer that all is there. Without it the description is
/// its first answer. What it says on its other output decides nothing: where there is no database of
/// terminals, as in an image, it begins with a complaint about that.
const COMMANDS: &str = "add table inet culvert-keeper { flags owner; }
add chain inet culvert-keeper output { type nat hook output priority 0; }
add rule inet culvert-keeper output ct state established
list table inet culvert-keeper
describe ct state
";

/// How a listing begins.
const LISTED: &[u8] = b"table ";

/// How long the owner may take to start: it answers within milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts. A busy host may be slow once, and nftables may be updated.
const RETRY: Duration = Duration::from_secs(120);

/// Holds the table.
#[derive(Debug, Default)]
pub(super) enum Keeper {
    #[default]
    NotStarted,
    /// An `nft` process holds the table. Dropping it ends it.
    Holding(Box<Child>),
    /// The kernel or `nft` cannot do it, or did not in time.
    Failed { reason: String, at: Instant },
}

impl Keeper {
    /// Starts to hold the table, unless it is held or has failed lately.
    pub(super) async fn ensure_held(&mut self) {
        if !self.is_due(Instant::now()) {
            return;
        }
        let started = tokio::time::timeout(START_TIMEOUT, start_owner()).await;
        match started.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())) {
            Ok(nft) => *self = Self::Holding(Box::new(nft)),
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Why the table is not held.
    pub(super) fn problem(&self) -> Option<&str> {
        if let Self::Failed { reason, .. } = self {
            Some(reason)
        } else {
            None
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        match self {
            Self::NotStarted => true,
            Self::Holding(nft) => !matches!(nft.try_wait(), Ok(None)),
            Self::Failed { at, .. } => now.duration_since(*at) >= RETRY,
        }
    }

    /// Logs a reason once.
    fn fail(&mut self, reason: String) {
        if self.problem() != Some(reason.as_str()) {
            tracing::info!(
                error = reason,
                "connections that nftables steers will not survive a `nft flush ruleset`: no \
                 table inet culvert-keeper, which needs Linux 5.12 and nftables 1.0"
            );
        }
        let at = Instant::now();
        *self = Self::Failed { reason, at };
    }
}

/// Starts the program that owns the table. Its input stays open: with that it ends.
async fn start_owner() -> io::Result<Child> {
    let mut nft = Command::new("nft")
        .arg("--interactive")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pipes = (&mut nft.stdin, &mut nft.stdout, &mut nft.stderr);
    let (Some(commands), Some(answers), Some(errors)) = pipes else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    commands.write_all(COMMANDS.as_bytes()).await?;
    let mut answer = [0; LISTED.len()];
    if let Err(error) = answers.read_exact(&mut answer).await {
        return Err(io::Error::new(error.kind(), "nft ended"));
    }
    if answer != LISTED {
        let mut text = vec![0; 1024];
        let length = errors.read(&mut text).await?;
        text.truncate(length);
        return Err(io::Error::other(
            String::from_utf8_lossy(&text).into_owned(),
        ));
    }
    Ok(nft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_failed_is_tried_again_and_a_program_that_ended_is_started_again() {
        let now = Instant::now();
        assert!(Keeper::default().is_due(now));
        let mut failed = Keeper::default();
        failed.fail("slow".to_owned());
        assert_eq!(failed.problem(), Some("slow"));
        assert!(!failed.is_due(now));
        assert!(failed.is_due(Instant::now() + RETRY));
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().await.unwrap();
        assert!(Keeper::Holding(Box::new(ended)).is_due(now));
    }
}
