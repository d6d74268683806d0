//! Tests of the documents as a book: mdBook makes it, and every link in it leads somewhere.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Result;
use culvert_lab::workspace;
use tempfile::TempDir;
use xtask::book;

/// Compiled when it is first needed, in about two minutes.
static MDBOOK: LazyLock<PathBuf> = LazyLock::new(|| book::mdbook().expect("mdBook"));

/// The book of the repository at `root`.
fn made(root: &Path) -> Result<TempDir> {
    let out = tempfile::tempdir()?;
    book::make(&MDBOOK, root, out.path())?;
    Ok(out)
}

#[test]
fn the_book_has_every_page_a_search_and_no_dead_link() {
    let root = workspace::root();
    let out = made(&root).expect("the book");
    let there = |file: &str| out.path().join(file).is_file();
    for page in book::pages(&root).expect("its pages") {
        let html = page.replace(".md", ".html");
        assert!(there(&html), "no {html}");
    }
    assert!(there("index.html"));
    assert!(there("deploy/chart/culvert/values.yaml"), "a page names it");
    let files = std::fs::read_dir(out.path()).expect("the folder");
    let mut names = files.map(|file| file.expect("a file").file_name());
    assert!(names.any(|name| name.to_string_lossy().starts_with("searchindex")));
}

#[test]
fn no_link_of_the_pages_for_builders_is_dead() -> Result<()> {
    book::check_links(&MDBOOK, &workspace::root())
}

#[test]
fn a_book_with_a_link_to_a_page_heading_or_file_that_is_not_there_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(root.path().join("docs")).expect("another");
    let write = |name: &str, text: &str| {
        std::fs::write(root.path().join(name), text).expect("write it");
    };
    for name in ["book.toml", "docs/book.css"] {
        let text = std::fs::read_to_string(workspace::root().join(name));
        write(name, &text.expect(name));
    }
    write("docs/SUMMARY.md", "[Top](../README.md)\n\n- [A](a.md)\n");
    write("LICENSE", "free");
    write(
        "README.md",
        "# Top\n[a](docs/a.md#a-heading), [it](LICENSE)\n",
    );
    let page = "# A heading\n[up](../README.md#top), [here](#a-heading)\n";
    write("docs/a.md", page);
    made(root.path()).expect("nothing is wrong");

    for dead in ["../README.md#bottom", "#no-heading", "b.md", "../LICENCE"] {
        write("docs/a.md", &format!("{page}[dead]({dead})\n"));
        let error = made(root.path()).expect_err(dead).to_string();
        let link = dead.replace(".md", ".html");
        assert_eq!(
            error,
            format!("links lead nowhere:\n  docs/a.html: {link}"),
            "{dead}"
        );
    }
}
