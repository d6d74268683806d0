//! The program `culvert-hub`; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Builder;

/// The copies of answers are many short-lived buffers. The system's allocator keeps their memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// After how long a thread ends that has written the disk, which it does every 12 s. mimalloc gives
/// back what has been free for 1 s: when a thread ends, or after 10,000 more allocations.
const IDLE_THREAD_ENDS: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let mut runtime = Builder::new_current_thread();
    runtime.enable_all().thread_keep_alive(IDLE_THREAD_ENDS);
    let runtime = runtime.build().expect("the kernel has an epoll to give");
    runtime.block_on(culvert_hub::main())
}
