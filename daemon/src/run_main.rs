//! What the `main` of each program does.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Parses the command line and does what it says; prints why it could not, after the name of
/// `program`.
pub async fn run_main<A: Parser>(
    program: &str,
    run: impl AsyncFnOnce(A) -> Result<()>,
) -> ExitCode {
    match run(A::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
