//! A wall clock that a test sets: a library that is loaded before the C library (`LD_PRELOAD`). It
//! adds to `CLOCK_REALTIME` the seconds in the file that `JUMPING_CLOCK` names, and leaves all
//! other clocks unchanged.

#![allow(unsafe_code, reason = "takes the place of a function of the C library")]

use std::ffi::{c_int, c_long};
use std::sync::OnceLock;

use nix::libc;

static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();

fn seconds() -> i64 {
    let file = FILE.get_or_init(|| std::env::var_os("JUMPING_CLOCK"));
    let text = file
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Replaces the C library's function.
///
/// # Safety
/// `time` must be valid for writing.
// SAFETY: the name and the signature are those of the C library's function, which it replaces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    // SAFETY: the caller guarantees that `time` is valid.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), time) };
    if result == 0 && matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE) {
        // SAFETY: the kernel has just written to `time`.
        unsafe { (*time).tv_sec += seconds() };
    }
    if result == 0 { 0 } else { -1 }
}
