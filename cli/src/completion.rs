//! Completion by the shell. `culvert completion SHELL` prints what the shell is to source. At each
//! TAB the shell then runs this program, with the words so far and a variable set: it completes
//! commands, flags and names of nodes, as the proxies that the words name list them. For `kubectl
//! culvert` it is kubectl that runs this program, by a name of its own.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory, FromArgMatches};
use clap_complete::env::{EnvCompleter, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate};
use culvert_site::answered::all_ok;
use tokio::time::timeout;

use crate::args::{Arguments, Output, Whom};
use crate::nearest::node_list;
use crate::program_name::ProgramName;
use crate::session::Session;

/// The variable that names the shell.
const VARIABLE: &str = "_CULVERT_COMPLETE";
/// The name of the program.
const PROGRAM: &str = "culvert";
/// What kubectl, which is made with cobra, is told after the proposals: not to add names of files.
const NO_FILES: &str = ":4\n";
/// Arguments that are nodes, in whichever command.
const NODE_ARGUMENTS: [&str; 3] = ["node", "nodes", "destination"];
/// How long a host may take: the user waits at the prompt.
const HOST_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for all of it, with the API server that lists the hosts.
const NAMES_TIMEOUT: Duration = Duration::from_millis(1_500);
/// zsh runs a file of a folder of completions at the first TAB, which wants an answer then.
const ZSH_FIRST_TAB: &str = r#"
if [[ "$funcstack[1]" == _culvert ]]; then
    _clap_dynamic_completer_culvert "$@"
fi
"#;

/// The script for a shell.
///
/// # Errors
/// The shell is not known.
pub(crate) fn script(shell: &str) -> Result<String> {
    let mut script = Vec::new();
    completer(shell)?.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    let mut script = String::from_utf8(script).context("the script is no text")?;
    if shell == "zsh" {
        script += ZSH_FIRST_TAB;
    }
    Ok(script)
}

/// Prints completions, if a shell asks for them. Errors are not printed: they would be in the line
/// that the user edits.
pub(crate) fn answer() -> Option<ExitCode> {
    let completed = if is_run_by_kubectl() {
        complete_for_kubectl()
    } else {
        complete(&std::env::var(VARIABLE).ok()?)
    };
    match completed {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(_) => Some(ExitCode::FAILURE),
    }
}

fn is_run_by_kubectl() -> bool {
    ProgramName::of_process() == ProgramName::KubectlCompletion
}

/// A line each, with what it means after a tab, as fish wants it too.
fn complete_for_kubectl() -> Result<()> {
    complete("fish")?;
    std::io::stdout().write_all(NO_FILES.as_bytes())?;
    Ok(())
}

fn complete(shell: &str) -> Result<()> {
    let mut answer = Vec::new();
    let mut program = with_node_names(Arguments::command());
    program.build();
    let folder = std::env::current_dir().ok();
    completer(shell)?.write_complete(
        &mut program,
        command_line(),
        folder.as_deref(),
        &mut answer,
    )?;
    std::io::stdout().write_all(&answer)?;
    Ok(())
}

fn completer(shell: &str) -> Result<&'static dyn EnvCompleter> {
    const SHELLS: Shells<'static> = Shells::builtins();
    let shells: &'static Shells<'static> = &SHELLS;
    let name = Path::new(shell).file_stem().unwrap_or_default();
    let completer = shells.completer(&name.to_string_lossy());
    completer.with_context(|| format!("no completions for {shell}"))
}

/// The words of the line that is completed: those after `--`, or all that kubectl gives.
fn command_line() -> Vec<OsString> {
    let mut words = std::env::args_os();
    if !is_run_by_kubectl() {
        words.find(|word| word == "--");
    }
    words.collect()
}

/// The same command, where arguments that are nodes are completed.
fn with_node_names(mut command: Command) -> Command {
    for name in NODE_ARGUMENTS {
        if is_node_argument(&command, name) {
            let candidates = ArgValueCandidates::new(node_names);
            command = command.mut_arg(name, |arg| arg.add(candidates));
        }
    }
    let mut subcommands = Vec::new();
    for subcommand in command.get_subcommands() {
        subcommands.push(subcommand.get_name().to_owned());
    }
    for name in subcommands {
        command = command.mut_subcommand(name, with_node_names);
    }
    command
}

/// Whether the command has such an argument. `--nodes` is a file.
fn is_node_argument(command: &Command, name: &str) -> bool {
    let mut arguments = command.get_arguments();
    arguments.any(|arg| arg.get_id() == name && arg.get_long() != Some("nodes"))
}

/// The names of all nodes. None if no proxy answers.
fn node_names() -> Vec<CompletionCandidate> {
    // The engine asks from a thread that a runtime has already.
    let asked = thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async { timeout(NAMES_TIMEOUT, listed_names()).await? })
    });
    let mut candidates = Vec::new();
    if let Ok(Ok(names)) = asked.join() {
        for name in names {
            candidates.push(CompletionCandidate::new(name));
        }
    }
    candidates
}

async fn listed_names() -> Result<Vec<String>> {
    let session = Session::start(&whom()?, Output::Text).await?;
    let answers = session.ask(Duration::ZERO, node_list).await;
    let mut names = Vec::new();
    for nodes in all_ok(&answers) {
        names.extend(nodes.iter().map(|node| node.name.clone()));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Whom the words name. They are not a whole command line yet.
fn whom() -> Result<Whom> {
    let program = Arguments::command().ignore_errors(true);
    let matches = program.try_get_matches_from(command_line())?;
    let mut whom = Whom::from_arg_matches(&matches)?;
    whom.timeout = whom.timeout.min(HOST_TIMEOUT);
    Ok(whom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_a_script_that_runs_this_program() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = script(shell).expect(shell);
            assert!(script.contains(VARIABLE), "{shell}: {script}");
        }
        script("nosh").expect_err("no such shell");
    }
}
