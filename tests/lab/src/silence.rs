//! Interrupts this program when it makes no progress.

use std::time::Duration;

use crate::{interrupt, progress, stacks};

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(5);

/// How long this program may take to clean up after that.
const CLEANED_UP: Duration = Duration::from_mins(3);

/// Interrupts this program when it has printed no line of progress for this long, and prints the
/// stacks of all that it started. If it does not end soon after, it is ended without cleaning up.
pub fn stop_after(silence: Duration) {
    std::thread::spawn(move || {
        while progress::silent_for() < silence {
            std::thread::sleep(PERIOD);
        }
        let own = std::process::id().cast_signed();
        let reason = format!("stopped: it printed nothing for {} s", silence.as_secs());
        progress::say(&format!(
            "{reason}; the stacks of its processes:\n{}",
            stacks::of(&stacks::with_descendants(own))
        ));
        interrupt::because(reason);
        std::thread::sleep(CLEANED_UP);
        std::process::abort();
    });
}
