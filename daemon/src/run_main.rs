//! The `main` function that the programs share.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::closed_pipe::exit_when_reader_is_gone;
use crate::small_pages::use_small_pages;

/// Parses the command line and runs it. Prints an error after the name of `program`.
pub async fn run_main<A: Parser>(
    program: &str,
    run: impl AsyncFnOnce(A) -> Result<()>,
) -> ExitCode {
    // What has a huge page already keeps it.
    use_small_pages();
    exit_when_reader_is_gone();
    match run(A::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
