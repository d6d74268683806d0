//! An interrupt as a condition: every wait ends with an error, so that every `Drop` still cleans up.
//! Ctrl-C, SIGTERM and SIGHUP interrupt, and so may this program itself.
//!
//! The signals have handlers. Were they blocked instead, each child process would start with them
//! blocked, and no SIGTERM would end it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static SIGNALLED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Why this program interrupts itself.
static REASON: OnceLock<String> = OnceLock::new();

/// Has the signals interrupt instead of ending this process.
///
/// # Errors
/// The kernel refuses the handlers.
pub fn install() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, SIGNALLED.clone())
            .with_context(|| format!("handle signal {signal}"))?;
    }
    Ok(())
}

/// Interrupts this program.
pub(crate) fn because(reason: String) {
    // The first reason is the one to tell.
    REASON.set(reason).ok();
}

/// Whether a signal has arrived.
pub fn is_signalled() -> bool {
    SIGNALLED.load(Ordering::Acquire)
}

/// Fails once there is an interrupt.
///
/// # Errors
/// SIGINT, SIGTERM or SIGHUP has arrived, or this program has interrupted itself, with the reason.
pub fn check() -> Result<()> {
    if let Some(reason) = REASON.get() {
        bail!("{reason}");
    }
    if is_signalled() {
        bail!("interrupted by a signal");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_starts_with_no_signal_blocked() {
        install().unwrap();
        let mut grep = Command::new("grep");
        grep.args(["SigBlk", "/proc/self/status"]);
        let said = crate::workspace::output(&mut grep).unwrap();
        assert_eq!(said.split_whitespace().last(), Some("0000000000000000"));
    }
}
