//! What the programs do with command lines that a user types to get to know them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use crate::documents::{DAEMONS, flags};

/// Exit status of a program that was called wrongly.
const USAGE: i32 = 2;

#[test]
fn on_a_terminal_without_arguments_a_program_says_what_it_is_and_changes_nothing() -> Result<()> {
    for (program, _) in DAEMONS {
        let folder = tempfile::tempdir()?;
        let shown = on_a_terminal(program, folder.path())?;
        let text = String::from_utf8_lossy(&shown.stdout);
        ensure!(
            shown.status.code() == Some(USAGE),
            "{program}: {}: {text}",
            shown.status
        );
        for part in [format!("{program} run "), format!("{program} --help")] {
            ensure!(text.contains(&part), "{program}: no {part:?}: {text}");
        }
        let made: Vec<_> = std::fs::read_dir(folder.path())?.collect();
        ensure!(made.is_empty(), "{program} made {made:?}");
    }
    Ok(())
}

/// Runs a program on a terminal of its own. Everything that it could write is in the folder, and a
/// redirector that started would stop at its mark.
fn on_a_terminal(program: &str, folder: &Path) -> Result<Output> {
    Command::new("timeout")
        .args(["20", "script", "--quiet", "--return", "--command"])
        .arg(workspace::binary(program))
        .arg("/dev/null")
        .env("CULVERT_STATE_DIR", folder.join("state"))
        .env("CULVERT_HUB_STATE_DIR", folder.join("state"))
        .env("CULVERT_CONTROL_SOCKET", folder.join("run/control.sock"))
        .env("CULVERT_ADMIN_SOCKET", folder.join("run/admin.sock"))
        .env("CULVERT_CONNECT_SOCKET", folder.join("run/connect.sock"))
        .env(
            "CULVERT_DIRECTORY_SOCKET",
            folder.join("run/directory.sock"),
        )
        .env("CULVERT_MARK", "no mark")
        .stdin(Stdio::null())
        .output()
        .context("start script, of util-linux")
}

#[test]
fn every_program_takes_run_with_the_flags_of_its_daemon() -> Result<()> {
    for (program, _) in DAEMONS {
        let help = |words: &[&str]| {
            let mut command = Command::new(workspace::binary(program));
            workspace::output(command.args(words).arg("--help"))
        };
        let all = help(&[])?;
        let of_run = help(&["run"])?;
        let all = flags(&all);
        let of_run = flags(&of_run);
        let missing: Vec<_> = all.difference(&of_run).collect();
        ensure!(missing.is_empty(), "{program} run has no {missing:?}");
    }
    Ok(())
}

/// An agent that has not joined ends with an error, which shows that it was started.
#[test]
fn run_starts_what_the_program_starts_without_it() -> Result<()> {
    let mut errors = Vec::new();
    for words in [&[] as &[&str], &["run"]] {
        let folder = tempfile::tempdir()?;
        let ended = Command::new(workspace::binary("culvert-agent"))
            .args(words)
            .args(["--state-dir", "state", "--proxy", "127.0.0.1:9"])
            .args(["--admin-listen", "127.0.0.1:0"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .output()?;
        ensure!(ended.status.code() == Some(1), "{words:?}: {ended:?}");
        errors.push(String::from_utf8_lossy(&ended.stderr).into_owned());
    }
    ensure!(errors[0] == errors[1], "{errors:?}");
    Ok(())
}
