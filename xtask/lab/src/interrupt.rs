//! Ctrl-C and SIGTERM as a condition: every wait ends with an error, so that every `Drop` still
//! cleans up.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Blocks SIGINT, SIGTERM and SIGHUP for this process. Call it before any thread starts: threads
/// inherit the mask. Child processes do not: `std::process` clears it.
///
/// # Errors
/// The kernel refuses the signal mask.
pub fn install() -> Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .collect();
    signals.thread_block().context("block signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while signals.wait().is_ok() {
                eprintln!("interrupted: cleaning up");
                INTERRUPTED.store(true, Ordering::Release);
            }
        })?;
    Ok(())
}

/// Fails once a signal has arrived.
///
/// # Errors
/// SIGINT, SIGTERM or SIGHUP has arrived.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Acquire) {
        bail!("interrupted");
    }
    Ok(())
}
