//! `kubectl exec`, with a terminal and without, and `kubectl attach`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use crate::cluster::KUBECTL_TIME;
use crate::command::{Running, finish};
use crate::pods;
use crate::world::{SHOP, World};

/// Time for an answer of a shell or of a pod that repeats its input, on two busy cores.
const ANSWER: Duration = Duration::from_secs(20);

/// Proves all of it in the pod on a node.
pub(super) fn prove(world: &mut World, node: &str) -> Result<()> {
    let pod = pods::name(node);
    world.claim(
        &format!("kubectl exec on {node}: output, error output and exit code"),
        |world| {
            let line = [
                "--namespace",
                SHOP,
                "exec",
                &pod,
                "--",
                "sh",
                "-c",
                "hostname; echo oops >&2; exit 7",
            ];
            let done = finish(&mut world.cluster.kubectl(line), KUBECTL_TIME)?;
            let is_whole = done.out == format!("{pod}\n") && done.err.contains("oops\n");
            ensure!(is_whole && done.status.code() == Some(7), "{done:?}");
            Ok(())
        },
    )?;
    world.claim(
        &format!("kubectl exec -it on {node}: a shell, resized, and its exit code"),
        |world| interactive(world, &pod),
    )?;
    world.claim(
        &format!("kubectl attach -i on {node}: what is typed is heard"),
        |world| {
            let mut attached = world.start_shop(
                &format!("attach-{node}"),
                &["attach", "--stdin", &pod, "--container", "ear"],
            )?;
            attached.send("a word\n")?;
            attached.wait_for(&format!("{node} heard a word"), ANSWER)
        },
    )
}

fn interactive(world: &World, pod: &str) -> Result<()> {
    let kubectl = world.cluster.kubectl([
        "--namespace",
        SHOP,
        "exec",
        "--stdin",
        "--tty",
        pod,
        "--",
        "sh",
    ]);
    let device = world.file(&format!("terminal-of-{pod}"));
    let mut shell = in_terminal(world, pod, &device, &kubectl)?;
    shell.wait_for("# ", ANSWER)?;
    shell.send("stty size\n")?;
    shell.wait_for("30 100", ANSWER)?;
    let terminal =
        std::fs::read_to_string(&device).with_context(|| format!("read {}", device.display()))?;
    workspace::output(Command::new("stty").args([
        "-F",
        terminal.trim(),
        "rows",
        "41",
        "cols",
        "133",
    ]))?;
    // The new size is sent separately and may arrive after the next line of input.
    shell.send("while [ \"$(stty size)\" != '41 133' ]; do sleep 1; done; echo re''sized\n")?;
    shell.wait_for("resized", ANSWER)?;
    shell.send("exit 5\n")?;
    let done = shell.end(ANSWER)?;
    ensure!(
        done.status.code() == Some(5),
        "`exit 5` became {}: {}",
        done.status,
        done.out
    );
    Ok(())
}

/// Runs a command in a terminal of 30 rows and 100 columns; writes the terminal's device name to a
/// file.
fn in_terminal(world: &World, name: &str, device: &Path, command: &Command) -> Result<Running> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    let script = format!(
        "stty rows 30 cols 100; tty > {}; exec {}",
        quoted(&device.display().to_string()),
        line.join(" ")
    );
    let mut terminal = Command::new("script");
    terminal
        .args([
            "--quiet",
            "--flush",
            "--return",
            "--command",
            &script,
            "/dev/null",
        ])
        .env("SHELL", "/bin/sh");
    Running::start(world.folder(), &format!("terminal-{name}"), &mut terminal)
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
