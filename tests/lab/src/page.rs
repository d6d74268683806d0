//! Pages of `docs/`, for tests that do what they say.

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The text of a page.
///
/// # Errors
/// It cannot be read.
pub fn read(name: &str) -> Result<String> {
    let path = workspace::root().join("docs").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The part of a page under a heading, such as `## Upgrade`, up to the next heading.
///
/// # Errors
/// The page has no such heading.
pub fn section<'a>(page: &'a str, heading: &str) -> Result<&'a str> {
    let (_, after) = page
        .split_once(&format!("{heading}\n"))
        .with_context(|| format!("no heading {heading:?}"))?;
    // A line with a prompt begins with `# ` too.
    Ok(after.split("\n##").next().unwrap_or(after))
}

/// The blocks of code of a kind, such as `yaml`.
pub fn blocks<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    let begin = format!("```{kind}\n");
    let parts = text.split(begin.as_str()).skip(1);
    let mut blocks = Vec::new();
    for part in parts {
        if let Some((block, _)) = part.split_once("```") {
            blocks.push(block);
        }
    }
    blocks
}

/// The block of code, of whatever kind, that contains these words.
///
/// # Errors
/// There is none, or there are several.
pub fn block_with<'a>(text: &'a str, words: &str) -> Result<&'a str> {
    let mut found = None;
    for block in text.split("\n```").skip(1).step_by(2) {
        if block.contains(words) {
            ensure!(found.is_none(), "several blocks have {words:?}");
            found = Some(block);
        }
    }
    let block = found.with_context(|| format!("no block has {words:?}"))?;
    // The text begins on the line after the fence.
    let (_, text) = block.split_once('\n').context("an empty block")?;
    Ok(text)
}

/// What is typed in each block of kind `console`: the lines after the prompt `# ` or `$ `. Blocks
/// without that prompt are left out.
pub fn typed(text: &str, prompt: &str) -> Vec<String> {
    let mut all = Vec::new();
    for block in blocks(text, "console") {
        let lines = block.lines().filter_map(|line| line.strip_prefix(prompt));
        let typed = lines.collect::<Vec<_>>().join("\n");
        if !typed.is_empty() {
            all.push(typed);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_sections_and_what_is_typed() {
        let page = "# A\n## B\n```console\n# one\nsaid\n# two\n```\n```yaml\na: 1\n```\n### C\n```console\n$ ls\n```\n";
        let b = section(page, "## B").unwrap();
        assert_eq!(typed(b, "# "), ["one\ntwo"]);
        assert_eq!(blocks(b, "yaml"), ["a: 1\n"]);
        assert_eq!(typed(page, "$ "), ["ls"]);
        assert!(section(page, "## D").is_err());
        assert_eq!(block_with(page, "a:").unwrap(), "a: 1");
        assert!(block_with(page, "# two").is_ok() && block_with(page, "console").is_err());
    }
}
