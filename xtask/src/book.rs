//! `cargo xtask book`: the documents as web pages with search, by mdBook. `docs/SUMMARY.md` has the
//! chapters. Some are files outside of `docs`: so all of them are copied into one folder first,
//! each with its path in the repository, and their links lead to the same files there. Pages for
//! builders, such as `notes/`, are no chapters: a link to one becomes its path.

mod links;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::progress::{self, Step};
use culvert_lab::workspace;

use crate::cargo_tool;

const MDBOOK: &str = "0.5.4";

/// The folder of the documents for users.
const DOCS: &str = "docs";
/// The list of chapters, in that folder.
const SUMMARY: &str = "SUMMARY.md";
/// Pages for builders, and the folder of all others.
const BUILDERS_PAGES: [&str; 1] = ["CONTRIBUTING.md"];
const NOTES: &str = "notes";
/// What differs from the style of mdBook.
const STYLE: &str = "docs/book.css";
/// Where `book.toml` says that the pages are.
const PAGES: &str = "pages";

/// Makes the book for users in `target/book`.
///
/// # Errors
/// See [`make`].
pub fn run() -> Result<()> {
    let out = workspace::target_dir().join("book");
    let mdbook = mdbook()?;
    let step = Step::start("make the book");
    make(&mdbook, &workspace::root(), &out)?;
    step.done();
    progress::say(&format!("    {}", out.join("index.html").display()));
    Ok(())
}

/// mdBook with search, and without its web server.
///
/// # Errors
/// It cannot be fetched or compiled.
pub fn mdbook() -> Result<PathBuf> {
    let features = ["--no-default-features", "--features", "search"];
    cargo_tool::program_with("mdbook", MDBOOK, &features)
}

/// Makes the book for users of the repository at `root` in a folder, which is emptied before.
///
/// # Errors
/// The list of chapters is not complete ([`pages`]), mdBook fails, or a link of a page leads
/// nowhere.
pub fn make(mdbook: &Path, root: &Path, out: &Path) -> Result<()> {
    build(mdbook, root, &read_summary(root)?, out)
}

/// Checks the links of all pages, also of those for builders.
///
/// # Errors
/// See [`make`].
pub fn check_links(mdbook: &Path, root: &Path) -> Result<()> {
    let mut summary = read_summary(root)?;
    let mut pages = BTreeSet::from(BUILDERS_PAGES.map(str::to_owned));
    collect(root, NOTES, &mut pages)?;
    summary.push_str("\n# For builders\n\n");
    for page in pages {
        summary.push_str(&format!("- [{page}](../{page})\n"));
    }
    let out = tempfile::tempdir().context("a folder for the book")?;
    build(mdbook, root, &summary, out.path())
}

fn read_summary(root: &Path) -> Result<String> {
    read(&root.join(DOCS).join(SUMMARY))
}

/// Makes the book that has these chapters.
fn build(mdbook: &Path, root: &Path, summary: &str, out: &Path) -> Result<()> {
    let sources = tempfile::tempdir().context("a folder for the pages")?;
    for file in ["book.toml", STYLE] {
        copy(root, file, sources.path())?;
    }
    copy_pages(root, summary, &sources.path().join(PAGES))?;
    let mut build = Command::new(mdbook);
    build.arg("build").arg(sources.path());
    workspace::output(build.arg("--dest-dir").arg(std::path::absolute(out)?))?;
    add_files(root, out)?;
    let dead = links::dead(out)?;
    ensure!(
        dead.is_empty(),
        "links lead nowhere:\n  {}",
        dead.join("\n  ")
    );
    Ok(())
}

/// Copies the chapters and their list into a folder, as mdBook reads them.
fn copy_pages(root: &Path, summary: &str, to: &Path) -> Result<()> {
    let chapters = chapters(root, summary)?;
    for page in &chapters {
        copy(root, page, to)?;
        let text = without_other_pages(&read(&root.join(page))?, page, &chapters);
        std::fs::write(to.join(page), text).with_context(|| format!("write {page}"))?;
    }
    std::fs::write(to.join(SUMMARY), moved(summary)?).context("write the list of chapters")
}

/// The text of a page in which a link to a page for builders is its path: `[runs](../notes/x.md)`
/// becomes `runs (notes/x.md)`.
fn without_other_pages(text: &str, page: &str, chapters: &[String]) -> String {
    let folder = links::folder_of(page);
    let mut changed = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((link, after)) = after.split_once(')') else {
            break;
        };
        rest = after;
        let path = link.split('#').next().unwrap_or_default();
        if let Some(target) = links::joined(folder, path)
            && is_for_builders(&target)
            && !chapters.contains(&target)
            && let Some(label) = before.rfind('[')
        {
            changed.push_str(&before[..label]);
            changed.push_str(&format!("{} (`{target}`)", &before[label + 1..]));
        } else {
            changed.push_str(&format!("{before}]({link})"));
        }
    }
    changed + rest
}

fn is_for_builders(page: &str) -> bool {
    BUILDERS_PAGES.contains(&page) || page.starts_with(NOTES)
}

/// The pages of the book, as paths from `root`, in the order of the chapters.
///
/// # Errors
/// A page of `docs` is not a chapter or is one twice, or a chapter has no page.
pub fn pages(root: &Path) -> Result<Vec<String>> {
    let pages = chapters(root, &read_summary(root)?)?;
    let mut written = BTreeSet::new();
    collect(root, DOCS, &mut written)?;
    written.remove(&format!("{DOCS}/{SUMMARY}"));
    for page in &pages {
        written.remove(page);
    }
    ensure!(written.is_empty(), "{SUMMARY}: it lacks {written:?}");
    Ok(pages)
}

/// The pages that a list of chapters names.
fn chapters(root: &Path, summary: &str) -> Result<Vec<String>> {
    let mut pages = Vec::new();
    for line in summary.lines() {
        let Some(chapter) = Chapter::of(line) else {
            continue;
        };
        let page = chapter.page()?;
        ensure!(root.join(&page).is_file(), "{SUMMARY}: there is no {page}");
        ensure!(!pages.contains(&page), "{SUMMARY}: {page} is there twice");
        pages.push(page);
    }
    Ok(pages)
}

/// A line of the list that names a page.
struct Chapter<'a> {
    before: &'a str,
    /// As seen from `docs`.
    link: &'a str,
    after: &'a str,
}

impl<'a> Chapter<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let (before, rest) = line.split_once("](")?;
        let (link, after) = rest.split_once(')')?;
        Some(Self {
            before,
            link,
            after,
        })
    }

    /// The path of the page in the repository.
    fn page(&self) -> Result<String> {
        links::joined(DOCS, self.link)
            .with_context(|| format!("{SUMMARY}: {} is not in the repository", self.link))
    }
}

/// The list of chapters as it is at the top of the repository.
fn moved(summary: &str) -> Result<String> {
    let mut moved = String::new();
    for line in summary.lines() {
        match Chapter::of(line) {
            Some(chapter) => {
                let page = chapter.page()?;
                moved.push_str(&format!("{}]({page}){}\n", chapter.before, chapter.after));
            }
            None => moved.push_str(&format!("{line}\n")),
        }
    }
    Ok(moved)
}

/// Adds the files that pages link to and that are no pages, such as manifests.
fn add_files(root: &Path, out: &Path) -> Result<()> {
    for file in links::files(out)? {
        if !out.join(&file).exists() && root.join(&file).is_file() {
            copy(root, &file, out)?;
        }
    }
    Ok(())
}

/// The Markdown files of a folder and of those in it, as paths from `root`.
fn collect(root: &Path, folder: &str, found: &mut BTreeSet<String>) -> Result<()> {
    let entries = std::fs::read_dir(root.join(folder)).with_context(|| format!("read {folder}"))?;
    for entry in entries {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(root, &path, found)?;
        } else if path.ends_with(".md") {
            found.insert(path);
        }
    }
    Ok(())
}

/// Copies a file to the same path in another folder.
fn copy(root: &Path, file: &str, to: &Path) -> Result<()> {
    copy_file(&root.join(file), &to.join(file)).with_context(|| format!("copy {file}"))
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to.parent().unwrap_or(to))?;
    std::fs::copy(from, to)?;
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_is_a_chapter_and_every_chapter_has_a_page() {
        let pages = pages(&workspace::root()).expect("the list of chapters");
        assert_eq!(pages[0], "README.md");
    }

    #[test]
    fn a_page_that_is_no_chapter_and_a_chapter_without_a_page_are_refused() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("docs/more")).expect("folders");
        let write = |name: &str, text: &str| {
            std::fs::write(root.path().join(name), text).expect("write it");
        };
        write("README.md", "");
        write("docs/a.md", "");
        write("docs/SUMMARY.md", "[Top](../README.md)\n- [A](a.md)\n");
        assert_eq!(
            pages(root.path()).expect("both"),
            ["README.md", "docs/a.md"]
        );
        let refused = |reason: &str| {
            let error = pages(root.path()).expect_err(reason).to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        };
        write("docs/more/b.md", "");
        refused("lacks {\"docs/more/b.md\"}");
        write(
            "docs/SUMMARY.md",
            "- [A](a.md)\n- [B](more/b.md)\n- [C](c.md)\n",
        );
        refused("no docs/c.md");
        write(
            "docs/SUMMARY.md",
            "- [A](a.md)\n- [B](more/b.md)\n- [A](./a.md)\n",
        );
        refused("docs/a.md is there twice");
        write("docs/SUMMARY.md", "- [Out](../../a.md)\n");
        refused("../../a.md is not in the repository");
    }

    #[test]
    fn a_link_to_a_page_for_builders_becomes_its_path() {
        let text = "[a](a.md), [all runs](../notes/b.md#c) and [x](../CONTRIBUTING.md).";
        let chapters = ["docs/a.md".to_owned()];
        assert_eq!(
            without_other_pages(text, "docs/d.md", &chapters),
            "[a](a.md), all runs (`notes/b.md`) and x (`CONTRIBUTING.md`)."
        );
    }

    #[test]
    fn chapters_are_moved_to_the_top_of_the_repository() {
        let moved = moved("# Summary\n\n[Top](../README.md)\n- [A](a.md)\n").expect("both");
        assert_eq!(moved, "# Summary\n\n[Top](README.md)\n- [A](docs/a.md)\n");
    }
}
