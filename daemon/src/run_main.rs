//! The `main` function that the programs share.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::closed_pipe::exit_when_reader_is_gone;
use crate::generate;
use crate::small_pages::use_small_pages;

/// Parses the command line and runs it, or writes its man pages and completions (`--generate DIR`).
/// Prints an error after the name of `program`.
pub async fn run_main<A: Parser>(
    program: &str,
    run: impl AsyncFnOnce(A) -> Result<()>,
) -> ExitCode {
    // What has a huge page already keeps it.
    use_small_pages();
    exit_when_reader_is_gone();
    let done = match generate::asked(std::env::args_os()) {
        Some(folder) => generate::generate(A::command(), &folder),
        None => run(A::parse()).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
