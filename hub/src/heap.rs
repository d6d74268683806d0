//! The heap of the program. glibc's allocator needs least memory at a peak, and gives free memory in
//! the middle of the heap back only when it is asked to.

use std::time::Duration;

/// How often free memory is given back. It takes the allocator's lock for about a millisecond.
const EVERY: Duration = Duration::from_secs(10);

/// Sets up the heap. Call it before any other thread exists.
pub(crate) fn give_free_memory_back() {
    set_one_arena();
    let giving = std::thread::Builder::new().name("heap".to_owned());
    let giving = giving.stack_size(64 << 10).spawn(|| {
        loop {
            std::thread::sleep(EVERY);
            trim();
        }
    });
    giving.expect("the kernel has a thread to give");
}

/// Threads share one arena: nearly everything happens in one thread.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the C library has no safe function for it")]
fn set_one_arena() {
    // SAFETY: the parameter is one that mallopt(3) knows, and no other thread allocates.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "the C library has no safe function for it")]
fn trim() {
    // SAFETY: malloc_trim(3) is safe in any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn set_one_arena() {}

#[cfg(not(target_env = "gnu"))]
fn trim() {}
