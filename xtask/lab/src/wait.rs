//! Waiting for conditions, never for time alone.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::interrupt;

/// Between two looks at a condition: short against everything that is waited for, long against the
/// cost of a look.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause between two looks at a condition.
pub fn pause() {
    std::thread::sleep(PAUSE);
}

/// Looks at a condition until it holds, and returns what it found.
///
/// # Errors
/// At the deadline, with the last reason why it did not hold, and when the person at the terminal
/// gave up.
pub fn until<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        interrupt::check()?;
        let reason = match look() {
            Ok(found) => return Ok(found),
            Err(reason) => reason,
        };
        if started.elapsed() >= deadline {
            bail!("{what}: not within {deadline:?}: {reason:#}");
        }
        pause();
    }
}

/// Checks that a condition holds, and goes on holding, for a while.
///
/// # Errors
/// The first failure of the condition.
pub fn throughout(
    what: &str,
    duration: Duration,
    mut look: impl FnMut() -> Result<()>,
) -> Result<()> {
    let started = Instant::now();
    while started.elapsed() < duration {
        interrupt::check()?;
        if let Err(reason) = look() {
            bail!("{what}: after {:?}: {reason:#}", started.elapsed());
        }
        pause();
    }
    Ok(())
}
