//! `notes/failures.md` names tests; they must exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

/// What the list may quote besides tests: prefixes of names in the kernel and in our
/// programs.
const NO_TESTS: [&str; 3] = ["bpf_", "culvert_", "cv_"];

#[test]
fn every_test_that_the_list_of_failures_names_exists_and_every_failure_has_one_or_a_sentence()
-> Result<()> {
    let path = workspace::root().join("notes/failures.md");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let tests = tests_of_the_workspace()?;
    let entries: Vec<Entry<'_>> = text.lines().filter_map(Entry::of).collect();
    ensure!(
        entries.len() >= 85,
        "only {} entries: has the form of the tables changed?",
        entries.len()
    );
    let unknown: Vec<&str> = quoted_tests(&text)
        .filter(|name| !tests.contains(*name))
        .collect();
    ensure!(unknown.is_empty(), "no such tests: {unknown:?}");
    let bare: Vec<&str> = entries
        .iter()
        .filter(|entry| !entry.is_answered())
        .map(|entry| entry.failure)
        .collect();
    ensure!(bare.is_empty(), "neither a test nor a sentence: {bare:?}");
    Ok(())
}

/// A row of a table: the problem of other projects comes first, the answer last.
struct Entry<'a> {
    failure: &'a str,
    answer: &'a str,
}

impl<'a> Entry<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let row = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
        let (failure, rest) = row.split_once('|')?;
        let answer = rest.rsplit('|').next()?.trim();
        let failure = failure.trim();
        let is_head = failure == "what went wrong";
        let is_entry = !failure.starts_with("--") && !is_head;
        is_entry.then_some(Self { failure, answer })
    }

    fn is_answered(&self) -> bool {
        let is_sentence = self.answer.ends_with('.') && self.answer.split_whitespace().count() >= 4;
        is_sentence || quoted_tests(self.answer).next().is_some()
    }
}

/// Names in backticks that look like names of tests, which have four words or more.
fn quoted_tests(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|quoted| {
        let is_name = quoted
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name
            && quoted.matches('_').count() >= 3
            && !NO_TESTS.iter().any(|prefix| quoted.starts_with(prefix))
    })
}

fn tests_of_the_workspace() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(workspace::root())? {
        let entry = entry?;
        if entry.file_name() != "target" {
            collect(&entry.path(), &mut found)?;
        }
    }
    ensure!(found.contains(
        "every_test_that_the_list_of_failures_names_exists_and_every_failure_has_one_or_a_sentence"
    ));
    Ok(found)
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            found.extend(test_functions(&source).into_iter().map(str::to_owned));
        }
    }
    Ok(())
}

/// Functions with an attribute `test`, `tokio::test` or `tokio::test(...)`.
fn test_functions(source: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, start) in source.match_indices("#[") {
        let rest = &source[at + start.len()..];
        let Some((attribute, after)) = rest.split_once(']') else {
            continue;
        };
        let name = attribute.split('(').next().unwrap_or_default();
        if !name.ends_with("test") || name == "cfg" {
            continue;
        }
        // Another attribute may follow.
        let function = after
            .split_once("fn ")
            .and_then(|(_, text)| text.split_once('('));
        names.extend(function.map(|(name, _)| name));
    }
    names
}

#[test]
fn a_quoted_claim_is_a_test_and_a_row_without_an_answer_is_noticed() {
    let names: Vec<_> =
        quoted_tests("`a_stalled_reader_is_harmless`, `cv_connect4`, `bpf_get_socket_cookie`")
            .collect();
    assert_eq!(names, ["a_stalled_reader_is_harmless"]);
    let answered = |line: &str| Entry::of(line).map(|entry| entry.is_answered());
    assert_eq!(
        answered("| it hung | #1 | `a_stalled_reader_is_harmless` |"),
        Some(true)
    );
    assert_eq!(
        answered("| it hung | #1 | Nothing is shared there. |"),
        Some(true)
    );
    assert_eq!(answered("| it hung | #1 | |"), Some(false));
    assert_eq!(answered("| what went wrong | where | here |"), None);
    let source = "#[cfg(test)]\nmod t \
        {\n#[tokio::test(start_paused = true)]\nasync fn one_two() {}\nfn three() \
        {}\n#[test]\n#[ignore = \"long\"]\nfn four() {}\n";
    assert_eq!(test_functions(source), ["one_two", "four"]);
}
