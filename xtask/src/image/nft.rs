//! This machine's program `nft`, with the libraries that it loads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;

/// `nft` and its libraries: content by path, without the first slash.
pub(super) fn with_libraries() -> Result<BTreeMap<String, Vec<u8>>> {
    let nft =
        workspace::find_program("nft").context("no nft here: install the package nftables")?;
    let listed = workspace::output(Command::new("ldd").arg(&nft))?;
    let libraries = paths(&listed);
    ensure!(
        !libraries.is_empty(),
        "ldd {} names no library: {listed}",
        nft.display()
    );
    libraries.into_iter().chain([nft]).map(read).collect()
}

fn read(path: PathBuf) -> Result<(String, Vec<u8>)> {
    // Follows links: in the image a library's file has the name by which it is loaded.
    let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let inside = path
        .strip_prefix("/")
        .unwrap_or(&path)
        .to_str()
        .context("a path that is not a text")?;
    Ok((inside.to_owned(), bytes))
}

/// Parses the files in the output of `ldd`: `libx.so => /lib/libx.so (0x...)`, and the loader
/// without an arrow. An entry without a file is provided by the kernel.
fn paths(listed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let found = line.rsplit("=> ").next()?.split_whitespace().next()?;
        Path::new(found).is_absolute().then(|| found.into())
    };
    listed.lines().filter_map(path).collect()
}

/// Whether a program loads no libraries.
pub(super) fn is_static(program: &Path) -> Result<bool> {
    let done = Command::new("ldd")
        .arg(program)
        .env("LC_ALL", "C")
        .output()
        .context("run ldd")?;
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Ok(said.contains("statically linked") || said.contains("not a dynamic executable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_read_from_ldd() {
        let listed = "\tlinux-vdso.so.1 (0x00007f8be934d000)\n\tlibmnl.so.0 => \
            /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007f8b)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f8b)\n";
        assert_eq!(
            paths(listed),
            [
                PathBuf::from("/lib/x86_64-linux-gnu/libmnl.so.0"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }
}
