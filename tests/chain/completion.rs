//! `culvert completion` in a real bash: commands come from the program, and names of nodes from the
//! proxies that the line names.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::workspace;

use crate::world;

const EDGES: &[Host] = &[Host::Edge1, Host::Edge2];

/// Completes the last of the words, as bash does at a TAB; prints what it finds, a line each. Errors
/// would be in the line that the user edits: they are printed too.
const COMPLETE: &str = r#"
exec 2>&1
source <(culvert completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_clap_complete_culvert culvert "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// What bash proposes for the last of the words of a line.
fn proposals(mut bash: Command, run_dir: &Path, line: &[&str]) -> Result<Vec<String>> {
    bash.env(
        "PATH",
        workspace::path_with_folder_of(&workspace::binary("culvert"))?,
    );
    bash.env("CULVERT_RUN_DIR", run_dir);
    bash.env("KUBECONFIG", "/nonexistent");
    bash.args(["--norc", "-c", COMPLETE, "bash", "culvert"]);
    let printed = workspace::output(bash.args(line))?;
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
        }
        Ok(())
    });
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
