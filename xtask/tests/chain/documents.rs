//! Documents that operators rely on: `--help`, the README, and the demo.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtask::workspace;

use crate::world;

/// Each program with its subcommands.
const PROGRAMS: [(&str, &[&str]); 3] = [
    ("culvert-proxy", &["token create", "token list", "token revoke", "node list", "node remove"]),
    ("culvert-redirector", &["status", "explain", "uninstall"]),
    ("culvert-agent", &["join"]),
];

#[test]
fn the_readme_has_every_flag_of_every_program_and_no_other() -> Result<()> {
    let readme = readme()?;
    for (program, subcommands) in PROGRAMS {
        let mut help = String::new();
        for words in std::iter::once(&"").chain(subcommands) {
            help += &workspace::output(
                Command::new(workspace::binary(program)).args(words.split_whitespace()).arg("--help"),
            )?;
        }
        let section = section(&readme, &format!("### {program}"))?;
        let (real, written) = (flags(&help), flags(section));
        let (missing, invented): (Vec<_>, Vec<_>) =
            (real.difference(&written).collect(), written.difference(&real).collect());
        ensure!(
            missing.is_empty() && invented.is_empty(),
            "{program}: not in the README {missing:?}, only there {invented:?}"
        );
    }
    Ok(())
}

#[test]
fn the_demo_passes_and_leaves_nothing() {
    if !world::may_run() {
        return;
    }
    let done = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("demo").output().expect("start the demo");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "the demo failed\n{out}\n{err}");
    let namespaces = workspace::output(Command::new("ip").args(["netns", "list"])).expect("list namespaces");
    assert!(!namespaces.contains("culvert-demo"), "{namespaces}");
    assert!(!std::path::Path::new("/run/culvert-demo").exists(), "/run/culvert-demo is still there");
    let cgroups = workspace::output(Command::new("find").args(["/sys/fs/cgroup", "-name", "culvert-demo"]))
        .expect("find cgroups");
    assert!(cgroups.is_empty(), "{cgroups}");
}

/// Every family that a program's `/metrics` names is in the README.
pub(crate) fn readme_lists_every_metric(metrics: &str) -> Result<()> {
    let readme = readme()?;
    let names = metrics.lines().filter_map(|line| {
        let (family, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        // As samples have it, and as operators query it.
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        Some(format!("{family}{suffix}"))
    });
    let missing: Vec<String> = names.filter(|name| !readme.contains(&format!("`{name}`"))).collect();
    ensure!(missing.is_empty(), "the README does not list {missing:?}");
    Ok(())
}

fn readme() -> Result<String> {
    std::fs::read_to_string(workspace::root().join("README.md")).context("read README.md")
}

fn section<'a>(readme: &'a str, heading: &str) -> Result<&'a str> {
    let start = readme.find(heading).with_context(|| format!("the README has no {heading:?}"))? + heading.len();
    let end = readme[start..].find("\n#").unwrap_or(readme.len() - start);
    Ok(&readme[start..start + end])
}

/// All `--words` of a text, but those that every program has.
fn flags(text: &str) -> BTreeSet<&str> {
    let is_flag = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.split(|c: char| !is_flag(c))
        .filter(|word| word.starts_with("--") && !word.ends_with("--") && !["--help", "--version"].contains(word))
        .collect()
}
