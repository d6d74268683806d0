//! Images of this machine's programs: each program with the libraries that it needs, in one layer.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::go_program::GoProgram;
use culvert_lab::workspace;

use crate::world::World;

/// An HTTPS client that verifies certificates.
pub(super) const CURL: &str = "local/curl:1";
/// Prometheus, which discovers by files, by HTTP and by Kubernetes.
pub(super) const PROMETHEUS: &str = "local/prometheus:1";

/// Loads both on every node.
pub(super) fn load(world: &World) -> Result<()> {
    let curl = workspace::find_program("curl").context("curl is missing: `cargo xtask setup`")?;
    load_dynamic(world, CURL, &curl)?;
    load_static(world, PROMETHEUS, &GoProgram::Prometheus.path())
}

/// Loads a program with the libraries that it needs.
fn load_dynamic(world: &World, image: &str, program: &Path) -> Result<()> {
    for library in libraries(&workspace::output(Command::new("ldd").arg(program))?) {
        copy(&library, &folder_of(world, program)?, &library)?;
    }
    load_static(world, image, program)
}

/// Loads a program that needs no library.
pub(super) fn load_static(world: &World, image: &str, program: &Path) -> Result<()> {
    let folder = folder_of(world, program)?;
    let inside = Path::new("/bin").join(program.file_name().context(NAMELESS)?);
    copy(program, &folder, &inside)?;
    // Clients create temporary files, and mount points are created here.
    std::fs::create_dir_all(folder.join("tmp"))?;
    world
        .cluster
        .image(image, &folder, &[&inside.display().to_string()])
}

const NAMELESS: &str = "a program has a name";

/// The folder of an image's files.
fn folder_of(world: &World, program: &Path) -> Result<PathBuf> {
    let name = program.file_name().context(NAMELESS)?;
    Ok(world.file("images").join(name))
}

fn copy(from: &Path, folder: &Path, inside: &Path) -> Result<()> {
    ensure!(
        inside.is_absolute(),
        "{} is not an absolute path",
        inside.display()
    );
    let to = folder.join(inside.strip_prefix("/")?);
    std::fs::create_dir_all(to.parent().unwrap_or(folder))
        .with_context(|| format!("make room for {}", to.display()))?;
    std::fs::copy(from, &to)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Parses the files in the output of `ldd`: `libc.so.6 => /lib/libc.so.6 (0x..)` and
/// `/lib64/ld-linux-x86-64.so.2 (0x..)`.
fn libraries(ldd: &str) -> Vec<PathBuf> {
    let mut libraries = Vec::new();
    for line in ldd.lines() {
        if let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')) {
            libraries.push(PathBuf::from(path));
        }
    }
    libraries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_the_loader_are_found_in_what_ldd_prints() {
        let ldd = "\tlinux-vdso.so.1 (0x00007f7c)\n\tlibc.so.6 => /lib/libc.so.6 \
            (0x0000)\n\t/lib64/ld-linux.so.2 (0x0007)\n";
        assert_eq!(
            libraries(ldd),
            [
                PathBuf::from("/lib/libc.so.6"),
                PathBuf::from("/lib64/ld-linux.so.2")
            ]
        );
    }
}
