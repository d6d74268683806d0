//! `--generate DIR`: the man pages and shell completions of a program, for packages of it. They come
//! from the command line itself, so they list what the program takes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// The only argument before the folder. It is not in `--help`: it is for those who make packages.
const OPTION: &str = "--generate";

/// The folder that a command line asks to fill, if that is all it asks.
pub(crate) fn requested_folder(mut args: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let option = args.nth(1)?;
    let folder = args.next()?;
    if option != OPTION || args.next().is_some() {
        return None;
    }
    Some(folder.into())
}

/// Writes a page `PROGRAM[-SUBCOMMAND...].1` for each command, and the completions of bash, zsh and
/// fish, into a folder that exists.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn generate(mut command: Command, folder: &Path) -> Result<()> {
    // First: completions add `help` and its subcommands to the command, which need no pages.
    clap_mangen::generate_to(command.clone(), folder)
        .with_context(|| format!("write man pages to {}", folder.display()))?;
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, folder)
            .with_context(|| format!("write the completions of {shell} to {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_its_completions() {
        let folder = tempfile::tempdir().expect("a folder");
        let list = Command::new("list").about("Lists tokens");
        let token = Command::new("token").subcommand(list);
        let program = Command::new("culvert-x").subcommand(token);
        generate(program, folder.path()).expect("write them");
        let mut names: Vec<_> = folder
            .path()
            .read_dir()
            .expect("list it")
            .map(|file| file.expect("a file").file_name())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "_culvert-x",
                "culvert-x-token-list.1",
                "culvert-x-token.1",
                "culvert-x.1",
                "culvert-x.bash",
                "culvert-x.fish"
            ]
        );
        let page =
            std::fs::read_to_string(folder.path().join("culvert-x-token-list.1")).expect("read");
        assert!(page.contains("Lists tokens"), "{page}");
    }

    #[test]
    fn only_the_option_and_a_folder_ask_for_it() {
        let folder = |line: &str| requested_folder(line.split(' ').map(OsString::from));
        assert_eq!(folder("culvert-x --generate out"), Some("out".into()));
        assert_eq!(folder("culvert-x --generate"), None);
        assert_eq!(folder("culvert-x --generate out more"), None);
        assert_eq!(folder("culvert-x --grace 3s"), None);
    }
}
