//! The program `culvert`; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    culvert_cli::main().await
}
