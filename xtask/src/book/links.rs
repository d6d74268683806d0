//! The links of a folder of web pages, and those among them that lead nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

/// The links in the folder that lead to no file of it or to no place of that file, each with its
/// page.
///
/// # Errors
/// A page cannot be read.
pub(super) fn dead(folder: &Path) -> Result<Vec<String>> {
    let pages = Page::all(folder)?;
    let mut dead = Vec::new();
    for (path, page) in &pages {
        for link in &page.links {
            let found = match target(path, link) {
                None => false,
                Some((file, None)) => folder.join(file).is_file(),
                Some((file, Some(place))) => pages
                    .get(&file)
                    .is_some_and(|page| page.places.contains(place)),
            };
            if !found {
                dead.push(format!("{path}: {link}"));
            }
        }
    }
    Ok(dead)
}

/// The files that links in the folder lead to, as paths from there.
///
/// # Errors
/// A page cannot be read.
pub(super) fn files(folder: &Path) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    for (path, page) in Page::all(folder)? {
        for link in &page.links {
            if let Some((file, _)) = target(&path, link) {
                files.insert(file);
            }
        }
    }
    Ok(files)
}

/// Where a relative path leads from a folder, without `.` and `..`; `None` if out of the top one.
pub(super) fn joined(folder: &str, path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The folder of a page. The top one is the empty text.
pub(super) fn folder_of(page: &str) -> &str {
    match page.rsplit_once('/') {
        Some((folder, _)) => folder,
        None => "",
    }
}

/// The file that a link of a page leads to, and the place in it.
fn target<'a>(page: &str, link: &'a str) -> Option<(String, Option<&'a str>)> {
    let (path, place) = match link.split_once('#') {
        // A page's whole.
        Some((path, "")) => (path, None),
        Some((path, place)) => (path, Some(place)),
        None => (link, None),
    };
    let path = path.split('?').next().unwrap_or_default();
    let file = match path {
        "" => page.to_owned(),
        path => joined(folder_of(page), path)?,
    };
    Some((file, place))
}

/// What is of interest of a page.
struct Page {
    /// Links that stay on this site, as they are written.
    links: Vec<String>,
    /// The `id` of every element.
    places: BTreeSet<String>,
}

impl Page {
    /// The pages of a folder and of those in it, by their paths from there.
    fn all(folder: &Path) -> Result<BTreeMap<String, Self>> {
        let mut pages = BTreeMap::new();
        Self::collect(folder, "", &mut pages)?;
        Ok(pages)
    }

    fn collect(top: &Path, folder: &str, pages: &mut BTreeMap<String, Self>) -> Result<()> {
        let here = top.join(folder);
        let entries = std::fs::read_dir(&here);
        for entry in entries.with_context(|| format!("read {}", here.display()))? {
            let entry = entry?;
            let path = format!("{folder}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                Self::collect(top, &format!("{path}/"), pages)?;
            } else if path.ends_with(".html") {
                let html = std::fs::read_to_string(entry.path());
                pages.insert(
                    path.clone(),
                    Self::of(&html.with_context(|| format!("read {path}"))?),
                );
            }
        }
        Ok(())
    }

    fn of(html: &str) -> Self {
        let mut page = Self {
            links: Vec::new(),
            places: BTreeSet::new(),
        };
        let mut rest = html;
        while let Some(start) = rest.find('<') {
            let (tag, after) = tag(&rest[start + 1..]);
            for name in ["href", "src"] {
                if let Some(link) = attribute(tag, name)
                    && !leaves(link)
                {
                    page.links.push(link.to_owned());
                }
            }
            page.places.extend(attribute(tag, "id").map(str::to_owned));
            // A script and a comment may have a `<` that begins no tag.
            let end = match tag {
                tag if tag.starts_with("script") => after.find("</script").unwrap_or(after.len()),
                _ => 0,
            };
            rest = &after[end..];
        }
        page
    }
}

/// A tag without its brackets, from behind the first one on, and what comes after it.
fn tag(html: &str) -> (&str, &str) {
    if html.starts_with("!--") {
        let end = html.find("-->").unwrap_or(html.len());
        return ("", &html[end..]);
    }
    let mut is_quoted = false;
    let end = html.find(|c| {
        is_quoted ^= c == '"';
        c == '>' && !is_quoted
    });
    html.split_at(end.unwrap_or(html.len()))
}

/// The value of an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("{name}=\"");
    let (at, _) = tag
        .match_indices(&start)
        .find(|(at, _)| tag[..*at].ends_with(|c: char| c.is_ascii_whitespace()))?;
    tag[at + start.len()..].split('"').next()
}

/// Whether a link leads to another site, or to none, such as `data:`.
fn leaves(link: &str) -> bool {
    let first = link.split(['/', '#', '?']).next().unwrap_or_default();
    first.contains(':') || link.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_file_or_place_that_is_not_there_is_dead() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("docs")).expect("another");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("write it");
        };
        write("book.css", "");
        write(
            "index.html",
            r##"<link href="book.css"><h1 id="top">x</h1><a href="docs/a.html#b">y</a><a href="#top">z</a>
            <a href="https://example.org/#there">out</a><a href="docs/b.html">dead</a>
            <script>if (1 < 2) { '<a href="no-link">' }</script><!-- <a href="no-link"> -->
            <a title="1 > 0" href="#bottom">dead</a>"##,
        );
        write(
            "docs/a.html",
            r#"<p id="b"><a href="../index.html#top">x</a><a href="../index.html#b">dead</a>
            <a href="../docs">dead</a><a href="../../index.html">dead</a><img src="no.png">"#,
        );
        assert_eq!(
            dead(folder.path()).expect("the pages"),
            [
                "docs/a.html: ../index.html#b",
                "docs/a.html: ../docs",
                "docs/a.html: ../../index.html",
                "docs/a.html: no.png",
                "index.html: docs/b.html",
                "index.html: #bottom",
            ]
        );
    }
}
