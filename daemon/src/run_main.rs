//! The `main` function that the programs share.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Command, Parser};

use crate::chain::chain;
use crate::closed_pipe::exit_when_reader_is_gone;
use crate::introduction::{Introduction, is_on_a_terminal};
use crate::small_pages::use_small_pages;
use crate::{flags_page, generate};

/// The subcommand that runs the daemon.
const RUN: &str = "run";
/// Exit status of a program that was called wrongly, as clap has it.
const USAGE: u8 = 2;

/// Parses the command line and runs it, or writes what others make of it (`--generate DIR`,
/// `--flags-page`).
/// Prints an error after the name of the program. Without any argument on a terminal it prints the
/// introduction, before it reads any setting.
pub async fn run_main<A: Parser>(
    introduction: Introduction,
    run: impl AsyncFnOnce(A) -> Result<()>,
) -> ExitCode {
    // What has a huge page already keeps it.
    use_small_pages();
    exit_when_reader_is_gone();
    let program = A::command();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.len() == 1 && is_on_a_terminal() {
        eprint!("{}", introduction.text(&program));
        return ExitCode::from(USAGE);
    }
    if flags_page::is_requested(&arguments) {
        print!("{}", flags_page::section(&program));
        return ExitCode::SUCCESS;
    }
    let name = program.get_name().to_owned();
    let done = match generate::requested_folder(arguments.iter().cloned()) {
        Some(folder) => generate::generate(program, &folder),
        None => {
            let parsed = parse(program, arguments).unwrap_or_else(|error| error.exit());
            run(parsed).await
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Parses a command line. A program that runs its daemon without a subcommand takes `run` as the
/// first argument too, with all flags of the daemon after it.
fn parse<A: Parser>(mut program: Command, mut arguments: Vec<OsString>) -> Result<A, clap::Error> {
    let is_optional = !program.is_subcommand_required_set();
    let runs = is_optional && arguments.get(1).is_some_and(|argument| argument == RUN);
    if runs {
        arguments.remove(1);
    }
    let matches = program.try_get_matches_from_mut(arguments)?;
    if runs && let Some(other) = matches.subcommand_name() {
        let reason = format!("`{other}` is another subcommand than `{RUN}`: give one of them");
        return Err(program.error(ErrorKind::ArgumentConflict, reason));
    }
    A::from_arg_matches(&matches).map_err(|error| error.format(&mut program))
}

#[cfg(test)]
mod tests {
    use clap::Subcommand;

    use super::*;

    /// As proxy, redirector and agent have it.
    #[derive(Parser, Debug)]
    struct Optional {
        #[command(subcommand)]
        command: Option<Words>,
        #[arg(long)]
        port: Option<u16>,
    }

    /// As the hub has it.
    #[derive(Parser, Debug)]
    struct Required {
        #[command(subcommand)]
        command: Words,
    }

    #[derive(Subcommand, Clone, Copy, PartialEq, Eq, Debug)]
    enum Words {
        Run,
        Status,
    }

    fn parsed<A: Parser>(line: &str) -> Result<A, ErrorKind> {
        let words = line.split(' ').map(OsString::from).collect();
        parse(A::command(), words).map_err(|error| error.kind())
    }

    #[test]
    fn run_is_what_a_daemon_does_without_a_subcommand_with_the_same_flags() {
        for line in ["x --port 1", "x run --port 1", "x --port 1 run"] {
            let args: Optional = parsed(line).expect(line);
            assert_eq!(args.port, Some(1), "{line}");
            assert_ne!(args.command, Some(Words::Status), "{line}");
        }
        let status: Optional = parsed("x status").expect("a subcommand");
        assert_eq!(status.command, Some(Words::Status));
        let help = parsed::<Optional>("x run --help").expect_err("it is help");
        assert_eq!(help, ErrorKind::DisplayHelp);
    }

    #[test]
    fn run_beside_another_subcommand_is_a_mistake() {
        for line in ["x run status", "x run --port 1 status", "x status run"] {
            parsed::<Optional>(line).expect_err(line);
        }
    }

    #[test]
    fn a_program_that_wants_a_subcommand_keeps_its_own_run() {
        let args: Required = parsed("x run").expect("run");
        assert_eq!(args.command, Words::Run);
        parsed::<Required>("x").expect_err("no subcommand");
    }
}
