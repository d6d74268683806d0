//! The program `culvert-redirector`; all of it is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    culvert_redirector::main().await
}
