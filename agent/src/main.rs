//! The program `culvert-agent`; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Streams allocate and free 64 KiB buffers all the time. The system's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    culvert_agent::main().await
}
