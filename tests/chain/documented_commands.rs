//! Tests that the commands of Culvert's programs in the documents exist.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::workspace;

use crate::documents::{CULVERT, all_flags, programs};
use crate::world::xtask;

#[test]
fn every_command_of_the_documents_has_its_subcommand_and_its_flags() -> Result<()> {
    let mut checked = 0;
    for page in pages()? {
        let text = std::fs::read_to_string(&page)?;
        let lines = code(&text);
        for one in lines.iter().flat_map(|line| line.split(" && ")) {
            let Some((program, words)) = command(one) else {
                continue;
            };
            // It is the name of the project too, and of what belongs to it.
            if words.is_empty() && program.ends_with(CULVERT.0) {
                continue;
            }
            ensure!(
                !is_typed(one) || !words.is_empty(),
                "{}: {one:?} is only introduced by it: say run",
                page.display()
            );
            if let Some(problem) = unknown(&program, &words)? {
                bail!("{}: {one:?}: {problem}", page.display());
            }
            checked += 1;
        }
    }
    ensure!(checked > 100, "only {checked} commands were found");
    Ok(())
}

/// All documents of the project's root, of `docs/`, `notes/`, `deploy/` and its chart.
fn pages() -> Result<Vec<PathBuf>> {
    let root = workspace::root();
    let mut pages = Vec::new();
    for folder in ["", "docs", "notes", "deploy", "deploy/chart/culvert"] {
        let folder = root.join(folder);
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            // It says what earlier versions had.
            let is_history = path.ends_with("CHANGELOG.md");
            if path.extension().is_some_and(|end| end == "md") && !is_history {
                pages.push(path);
            }
        }
    }
    Ok(pages)
}

/// The lines of a page's blocks of code, and the code within its other lines.
fn code(page: &str) -> Vec<&str> {
    let blocks = page.split("```").zip([false, true].into_iter().cycle());
    blocks
        .flat_map(|(text, is_code)| -> Vec<&str> {
            if is_code {
                text.lines().collect()
            } else {
                text.split('`').skip(1).step_by(2).collect()
            }
        })
        .collect()
}

/// Whether it stands behind the prompt of a shell: on a terminal.
fn is_typed(line: &str) -> bool {
    line.trim_start().starts_with(['#', '$'])
}

/// The program of Culvert that a command runs, and its arguments. Before it there may be a prompt,
/// settings, and the opening of a subshell: `# (umask 077; A=b culvert-proxy ...)`.
fn command(line: &str) -> Option<(PathBuf, Vec<&str>)> {
    let words: Vec<&str> = line
        .trim_start_matches(['#', '$', ' '])
        .trim_start_matches("(umask 077; ")
        .split_whitespace()
        .skip_while(|word| word.contains('='))
        .take_while(|word| !["|", ">", ";", "#"].contains(word))
        .collect();
    if let ["cargo", "xtask", arguments @ ..] = words.as_slice() {
        return Some((xtask(), arguments.to_vec()));
    }
    let is_ours = |word: &&str| programs().any(|(program, _)| program == *word);
    let start = if is_ours(words.first()?) {
        0
    } else {
        // As in `kubectl exec POD -- culvert status`.
        words.iter().position(|word| *word == "--")? + 1
    };
    let (program, arguments) = words[start..].split_first()?;
    is_ours(program).then(|| (workspace::binary(program), arguments.to_vec()))
}

/// The part of a command line that the program does not have.
fn unknown(program: &Path, words: &[&str]) -> Result<Option<String>> {
    let is_subcommand = |word: &&&str| {
        word.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !word.starts_with('-')
    };
    let path: Vec<&str> = words
        .iter()
        .take_while(is_subcommand)
        .copied()
        .take(2)
        .collect();
    // A second word may be an argument: in `explain edge`, only `explain` is a subcommand.
    for length in (0..=path.len()).rev() {
        let mut command = Command::new(program);
        let Ok(help) = workspace::output(command.args(&path[..length]).arg("--help")) else {
            continue;
        };
        let has_subcommands = help.contains("\nCommands:\n");
        if let Some(next) = path.get(length).filter(|_| has_subcommands) {
            return Ok(Some(format!("no subcommand {next:?}")));
        }
        let own: Vec<&str> = words
            .iter()
            .take_while(|word| **word != "--")
            .copied()
            .collect();
        let own = own.join(" ");
        let given = all_flags(&own);
        let known = all_flags(&help);
        let flag = given.difference(&known).next();
        return Ok(flag.map(|flag| format!("no flag {flag}")));
    }
    Ok(Some("no such program".to_owned()))
}
