//! Waits for conditions, never for time alone.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::interrupt;

/// The pause between two checks: short compared with what is waited for, long compared with the
/// cost of a check.
const PAUSE: Duration = Duration::from_millis(50);

/// How long tests wait for what should take a moment: busy processors hold up everything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Pauses between two checks of a condition.
pub fn pause() {
    std::thread::sleep(PAUSE);
}

/// Checks a condition until it holds, and returns its result.
///
/// # Errors
/// The deadline has passed, with the last reason why the condition did not hold; or the person at
/// the terminal interrupted.
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

/// Checks that a condition holds now and for some time.
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
