//! A tar archive whose bytes depend only on its files: the owner of all is root, their time is the
//! beginning of 1970, and they are sorted.

use std::collections::BTreeMap;

use anyhow::Result;
use tar::{Builder, EntryType, Header};

/// An archive that is being built.
#[derive(Default)]
pub(crate) struct Tar(BTreeMap<String, Entry>);

struct Entry {
    kind: EntryType,
    mode: u32,
    /// The content of a file. For a link: where it leads.
    bytes: Vec<u8>,
}

impl Tar {
    /// Adds a file, and its parent folders.
    pub(crate) fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        let mut rest = path;
        while let Some((folder, _)) = rest.rsplit_once('/') {
            rest = folder;
            self.0.insert(
                format!("{folder}/"),
                Entry {
                    kind: EntryType::Directory,
                    mode: 0o755,
                    bytes: Vec::new(),
                },
            );
        }
        self.0.insert(
            path.to_owned(),
            Entry {
                kind: EntryType::Regular,
                mode,
                bytes,
            },
        );
    }

    /// Adds a symbolic link in a folder that has files.
    pub(crate) fn link(&mut self, path: &str, to: &str) {
        let entry = Entry {
            kind: EntryType::Symlink,
            mode: 0o777,
            bytes: to.into(),
        };
        self.0.insert(path.to_owned(), entry);
    }

    /// The archive.
    ///
    /// # Errors
    /// A path has `..`.
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in self.0 {
            let mut header = Header::new_gnu();
            header.set_entry_type(entry.kind);
            header.set_mode(entry.mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            if entry.kind == EntryType::Symlink {
                header.set_size(0);
                archive.append_link(&mut header, path, std::str::from_utf8(&entry.bytes)?)?;
                continue;
            }
            header.set_size(u64::try_from(entry.bytes.len())?);
            archive.append_data(&mut header, path, entry.bytes.as_slice())?;
        }
        Ok(archive.into_inner()?)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_order_in_which_files_are_added_is_not_to_be_seen() {
        let files = [("usr/bin/a", 0o755), ("etc/b", 0o644), ("usr/c", 0o644)];
        let archive = |files: &[(&str, u32)]| {
            let mut tar = Tar::default();
            files
                .iter()
                .for_each(|(path, mode)| tar.file(path, *mode, path.as_bytes().to_vec()));
            tar.finish().unwrap()
        };
        let backwards: Vec<_> = files.into_iter().rev().collect();
        assert!(archive(&files) == archive(&backwards));
    }

    #[test]
    fn the_systems_tar_reads_it() {
        let mut tar = Tar::default();
        tar.file("usr/bin/b", 0o755, vec![b'x'; 513]);
        tar.file("etc/a", 0o644, b"text".to_vec());
        tar.link("usr/bin/c", "b");
        let long = format!("x/{}", "y".repeat(150));
        tar.file(&long, 0o644, Vec::new());
        let path = std::env::temp_dir().join(format!("culvert-tar-{}.tar", std::process::id()));
        std::fs::write(&path, tar.finish().unwrap()).unwrap();
        let run = |flags: &str, files: &[&str]| {
            let mut tar = Command::new("tar");
            tar.env("TZ", "UTC")
                .args(["--numeric-owner", "--full-time", flags])
                .arg(&path)
                .args(files);
            culvert_lab::workspace::output(&mut tar).unwrap()
        };
        let listed = run("-tvf", &[]);
        let text = run("-xOf", &["etc/a"]);
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<_> = listed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "drwxr-xr-x 0/0 0 1970-01-01 00:00:00 etc/",
                "-rw-r--r-- 0/0 4 1970-01-01 00:00:00 etc/a",
                "drwxr-xr-x 0/0 0 1970-01-01 00:00:00 usr/",
                "drwxr-xr-x 0/0 0 1970-01-01 00:00:00 usr/bin/",
                "-rwxr-xr-x 0/0 513 1970-01-01 00:00:00 usr/bin/b",
                "lrwxrwxrwx 0/0 0 1970-01-01 00:00:00 usr/bin/c -> b",
                "drwxr-xr-x 0/0 0 1970-01-01 00:00:00 x/",
                &format!("-rw-r--r-- 0/0 0 1970-01-01 00:00:00 {long}"),
            ]
        );
        assert_eq!(text, "text");
    }
}
