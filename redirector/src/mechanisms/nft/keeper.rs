//! The table `inet culvert-keeper`, which keeps translated connections through a `nft flush ruleset`.
//! With the last rule that needs it, the kernel's translation ends for connections that are
//! established too: what they send before the table is back makes them hang for good.
//!
//! The table changes no packet. It has a rule that needs the translation, and nobody else can flush
//! it, because an `nft` that runs as long as the redirector owns it (Linux 5.12). It ends with that.

use std::io;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::TIMEOUT;

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

/// Holds the table.
#[derive(Debug, Default)]
pub(super) enum Keeper {
    #[default]
    NotStarted,
    /// By this program. Dropping it ends it.
    Holding(Box<Child>),
    /// The kernel or `nft` cannot do it.
    Unsupported,
}

impl Keeper {
    /// Starts to hold the table, unless it is held or cannot be.
    pub(super) async fn ensure_held(&mut self) {
        let is_settled = match self {
            Self::NotStarted => false,
            Self::Holding(nft) => matches!(nft.try_wait(), Ok(None)),
            Self::Unsupported => true,
        };
        if is_settled {
            return;
        }
        let started = match tokio::time::timeout(TIMEOUT, start_owner()).await {
            Ok(started) => started,
            Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
        };
        *self = match started {
            Ok(nft) => Self::Holding(Box::new(nft)),
            Err(error) => {
                tracing::info!(
                    %error,
                    "connections that nftables steers will not survive a `nft flush ruleset`: no \
                     table inet culvert-keeper, which needs Linux 5.12 and nftables 1.0"
                );
                Self::Unsupported
            }
        };
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
