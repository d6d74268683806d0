//! `culvert completion` in real shells: commands come from the program, and names of nodes from the
//! proxies that the line names.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::workspace;

use crate::world::{self, World};

const EDGES: &[Host] = &[Host::Edge1, Host::Edge2];

/// Completes the last of the words, as bash does at a TAB; prints what it finds, a line each. Errors
/// would be in the line that the user edits: they are printed too.
const BASH: &str = r#"
exec 2>&1
source <(culvert completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_clap_complete_culvert culvert "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
/// The same in fish, which prints what the words mean behind a tab.
const FISH: &str = "culvert completion fish | source; complete -C \"$argv\"";
/// A user at a terminal of zsh: the script is one of a folder of completions, as packages install it,
/// and the line ends with two TABs: the first one completes what all proposals have in common. Prints
/// what the terminal shows up to the text that is waited for.
const ZSH: &str = r#"
folder=$1 line=$2 wanted=$3
culvert completion zsh >$folder/_culvert
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "fpath=($folder \$fpath); autoload -Uz compinit; compinit -u -d $folder/dump; PS1='pro''mpt> '"
zpty -r shell shown '*prompt> *'
zpty -n -w shell "$line"$'\t\t'
zpty -r shell shown "*$wanted*"
print -r -- "$shown"
zpty -d shell
"#;

/// A shell whose `culvert` asks the programs with sockets in this folder.
fn asking(mut shell: Command, run_dir: &Path) -> Result<Command> {
    shell.env(
        "PATH",
        workspace::path_with_folder_of(&workspace::binary("culvert"))?,
    );
    shell.env("CULVERT_RUN_DIR", run_dir);
    shell.env("KUBECONFIG", "/nonexistent");
    Ok(shell)
}

/// What bash proposes for the last of the words of a line.
fn proposals(bash: Command, run_dir: &Path, line: &[&str]) -> Result<Vec<String>> {
    let mut bash = asking(bash, run_dir)?;
    bash.args(["--norc", "-c", BASH, "bash", "culvert"]);
    lines(bash.args(line))
}

/// The same in fish.
fn fish_proposals(fish: Command, run_dir: &Path, line: &[&str]) -> Result<Vec<String>> {
    let home = tempfile::tempdir()?;
    let mut fish = asking(fish, run_dir)?;
    fish.env("HOME", home.path());
    fish.args(["--no-config", "--command", FISH, "culvert"]);
    let mut proposals = lines(fish.args(line))?;
    for proposal in &mut proposals {
        if let Some((word, _meaning)) = proposal.split_once('\t') {
            *proposal = word.to_owned();
        }
    }
    Ok(proposals)
}

fn lines(command: &mut Command) -> Result<Vec<String>> {
    let printed = workspace::output(command)?;
    let lines = printed.lines().filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

#[test]
fn a_tab_proposes_the_names_of_the_nodes_that_proxies_list() {
    world::with(EDGES, Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        let run_dir = world.culvert.socket("run");
        let both = ["edge-1", "edge-2"];
        for (line, expected) in [
            (&["why", "e"][..], &both[..]),
            (&["why", "edge-2"], &["edge-2"]),
            (&["why", "press"], &[]),
            (&["connect", "ed"], &both),
            (&["ping", "--local", "ed"], &both),
            (&["node", "ed"], &both),
            (&["node", "remove", "ed"], &both),
            (&["streams", "ed"], &both),
            (&["observe", "--node", "ed"], &both),
            (&["stat"], &["status"]),
        ] {
            let found = proposals(cloud.command("bash"), &run_dir, line)?;
            ensure!(found == expected, "{line:?}: {found:?}");
            let found = fish_proposals(cloud.command("fish"), &run_dir, line)?;
            ensure!(found == expected, "{line:?} in fish: {found:?}");
        }
        zsh_shows_them(world, &run_dir)
    });
}

fn zsh_shows_them(world: &World<'_>, run_dir: &Path) -> Result<()> {
    for (line, wanted) in [
        ("culvert why ed", "edge-2"),
        ("culvert co", "connectivity-test"),
    ] {
        let folder = tempfile::tempdir()?;
        let mut timeout = asking(world.lab.site(Host::Cloud).command("timeout"), run_dir)?;
        timeout.env("TERM", "xterm").env("HOME", folder.path());
        timeout.args(["60", "zsh", "-f", "-c", ZSH, "zsh"]);
        let shown = workspace::output(timeout.arg(folder.path()).args([line, wanted]))?;
        ensure!(shown.contains(wanted), "{line}: {shown}");
    }
    Ok(())
}

#[test]
fn a_tab_without_a_proxy_proposes_no_node_and_prints_no_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let names = |line| proposals(Command::new("bash"), folder.path(), line);
    let found = names(&["why", "ed"])?;
    ensure!(found.is_empty(), "{found:?}");
    let found = names(&["why", "--local", "ed"])?;
    ensure!(found.is_empty(), "{found:?}");
    let found = names(&["comp"])?;
    ensure!(found == ["completion"], "{found:?}");
    Ok(())
}
