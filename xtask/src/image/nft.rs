//! The program `nft` with the libraries that it loads, and the licences of Debian's packages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use culvert_lab::workspace;

use super::libraries::{self, PACKAGES, below, read, root};
use crate::processor::Processor;

/// `nft` and the files that it loads: content by path, without the first slash.
pub(super) fn with_libraries(processor: Processor) -> Result<BTreeMap<String, Vec<u8>>> {
    let root = root(processor)?;
    let nft = if processor == Processor::here()? {
        workspace::find_program("nft").context("no nft here: install the package nftables")?
    } else {
        "/usr/sbin/nft".into()
    };
    let mut files = libraries::of(&below(&root, &nft), processor)?;
    files.extend([read(&root, nft)?]);
    Ok(files)
}

/// Where Debian has the licences that the texts of its packages refer to.
const COMMON: &str = "/usr/share/common-licenses/";

/// The texts of the licences of `nft` and its libraries, as Debian's packages have them, and those
/// that these refer to. Other distributions have no such files. Content by path, relative to the
/// root.
pub(super) fn licences(processor: Processor) -> Result<BTreeMap<String, Vec<u8>>> {
    licences_of(&PACKAGES, processor)
}

/// The licences of glibc, which static programs contain, in the same way.
pub(super) fn licences_of_glibc(processor: Processor) -> Result<BTreeMap<String, Vec<u8>>> {
    licences_of(&["libc6"], processor)
}

/// The licences of what other programs of Rust load, in the same way.
pub(super) fn licences_of_libraries(processor: Processor) -> Result<BTreeMap<String, Vec<u8>>> {
    licences_of(&["libc6", "libgcc-s1"], processor)
}

fn licences_of(packages: &[&str], processor: Processor) -> Result<BTreeMap<String, Vec<u8>>> {
    let root = root(processor)?;
    let mut texts = BTreeMap::new();
    let mut referred = BTreeSet::new();
    for package in packages {
        let path = PathBuf::from(format!("/usr/share/doc/{package}/copyright"));
        if below(&root, &path).is_file() {
            let (path, text) = read(&root, path)?;
            referred.extend(common(&text));
            texts.insert(path, text);
        }
    }
    for path in referred {
        if path.is_file() {
            texts.extend([read(Path::new("/"), path)?]);
        }
    }
    Ok(texts)
}

/// The files in [`COMMON`] that a text names.
fn common(text: &[u8]) -> BTreeSet<PathBuf> {
    let text = String::from_utf8_lossy(text);
    let mut files = BTreeSet::new();
    for rest in text.split(COMMON).skip(1) {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-.+".contains(c));
        let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
        if !name.is_empty() {
            files.insert(Path::new(COMMON).join(name));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use culvert_lab::skip;

    use super::*;

    #[test]
    fn licences_that_a_text_refers_to_are_found() {
        let text =
            b"in `/usr/share/common-licenses/GPL-2'.\nSee /usr/share/common-licenses/LGPL-3.\n";
        let names = ["GPL-2", "LGPL-3"].map(|name| Path::new(COMMON).join(name));
        assert_eq!(common(text), BTreeSet::from(names));
    }

    #[test]
    fn glibc_has_its_licence_and_the_text_that_this_refers_to() {
        let here = Processor::here().expect("a known processor");
        if !crate::setup::apt::is_there() {
            return skip::skip("no packages of Debian are installed here");
        }
        let texts = licences_of_glibc(here).expect("texts");
        let names: Vec<_> = texts.keys().map(String::as_str).collect();
        assert!(
            names.contains(&"usr/share/doc/libc6/copyright"),
            "{names:?}"
        );
        assert!(
            names.iter().any(|name| name.ends_with("/LGPL-2.1")),
            "{names:?}"
        );
    }
}
