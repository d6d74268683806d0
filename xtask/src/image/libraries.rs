//! The libraries that a program loads: of this machine, or of Debian's packages for another processor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

use crate::processor::{Processor, foreign};

/// Debian's packages that have `nft` and its libraries.
pub(super) const PACKAGES: [&str; 12] = [
    "libbsd0",
    "libc6",
    "libedit2",
    "libgmp10",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnftables1",
    "libnftnl11",
    "libtinfo6",
    "libxtables12",
    "nftables",
];

/// The libraries of a program, and their loader: content by path, without the first slash.
pub(super) fn of(program: &Path, processor: Processor) -> Result<BTreeMap<String, Vec<u8>>> {
    let root = root(processor)?;
    let loader = below(&root, Path::new(processor.loader()));
    let mut list = foreign::command(processor, &loader)?;
    let listed = workspace::output(list.arg("--list").arg(program))?;
    let mut libraries = paths(&listed);
    // It names itself by the path at which it was run.
    libraries.retain(|path| *path != loader);
    ensure!(
        !libraries.is_empty() && !listed.contains("not found"),
        "libraries of {} are missing: {listed}",
        program.display()
    );
    let loader = Path::new("/").join(processor.loader());
    let files = libraries.into_iter().chain([loader]);
    files.map(|path| read(&root, path)).collect()
}

/// The folder below which the files of a processor are.
pub(super) fn root(processor: Processor) -> Result<PathBuf> {
    if processor == Processor::here()? {
        Ok("/".into())
    } else {
        foreign::tree(processor, &PACKAGES)
    }
}

pub(super) fn read(root: &Path, path: PathBuf) -> Result<(String, Vec<u8>)> {
    // Follows links: in the image a library's file has the name by which it is loaded.
    let bytes = std::fs::read(below(root, &path))
        .with_context(|| format!("read {} below {}", path.display(), root.display()))?;
    let inside = path.strip_prefix("/").unwrap_or(&path).to_str();
    let inside = inside.context("a path that is not a text")?;
    Ok((inside.to_owned(), bytes))
}

pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Parses the files in what a loader lists: `libx.so => /lib/libx.so (0x...)`, and itself without an
/// arrow. An entry without a file is provided by the kernel.
fn paths(listed: &str) -> Vec<PathBuf> {
    listed.lines().filter_map(path).collect()
}

fn path(line: &str) -> Option<PathBuf> {
    let (_, found) = line.split_once("=> ")?;
    let found = Path::new(found.split_whitespace().next()?);
    if found.is_absolute() {
        Some(found.into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_a_loader_lists() {
        let listed = "\tlinux-vdso.so.1 (0x00007f8be934d000)\n\tlibmnl.so.0 => \
            /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007f8b)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f8b)\n";
        assert_eq!(
            paths(listed),
            [PathBuf::from("/lib/x86_64-linux-gnu/libmnl.so.0")]
        );
    }
}
