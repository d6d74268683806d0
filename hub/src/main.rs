//! The program `culvert-hub`; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// The copies of answers are many short-lived buffers. The system's allocator keeps their memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    culvert_hub::main().await
}
