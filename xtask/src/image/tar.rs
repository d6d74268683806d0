//! A tar archive (POSIX ustar) whose bytes depend only on its files: the owner of all is root,
//! their time is the beginning of 1970, and they are sorted.

use std::collections::BTreeMap;
use std::path::Path;

const BLOCK: usize = 512;
/// The format's limit for a name. A longer one would need a second field.
const NAME: usize = 100;
const FILE: u8 = b'0';
const FOLDER: u8 = b'5';

/// An archive that is being built.
#[derive(Default)]
pub(super) struct Tar(BTreeMap<String, Entry>);

struct Entry {
    kind: u8,
    mode: u32,
    bytes: Vec<u8>,
}

impl Tar {
    /// Adds a file, and its parent folders.
    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        let folders = Path::new(path)
            .ancestors()
            .skip(1)
            .filter_map(Path::to_str)
            .filter(|folder| !folder.is_empty());
        for folder in folders {
            self.0.insert(
                format!("{folder}/"),
                Entry {
                    kind: FOLDER,
                    mode: 0o755,
                    bytes: Vec::new(),
                },
            );
        }
        self.0.insert(
            path.to_owned(),
            Entry {
                kind: FILE,
                mode,
                bytes,
            },
        );
    }

    /// The archive.
    pub(super) fn finish(self) -> Vec<u8> {
        let mut archive = Vec::new();
        for (path, entry) in self.0 {
            archive.extend(header(&path, &entry));
            archive.extend(&entry.bytes);
            archive.resize(archive.len().next_multiple_of(BLOCK), 0);
        }
        archive.resize(archive.len() + 2 * BLOCK, 0);
        archive
    }
}

fn header(path: &str, entry: &Entry) -> [u8; BLOCK] {
    assert!(
        path.len() <= NAME,
        "the path {path} is too long for an image"
    );
    let mut header = [0; BLOCK];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, &format!("{:07o}", entry.mode));
    // Owner and group, size, time.
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", entry.bytes.len()));
    put(136, "00000000000");
    // For the checksum, its own field counts as spaces.
    put(148, "        ");
    put(156, char::from(entry.kind).encode_utf8(&mut [0; 4]));
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
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
            tar.finish()
        };
        let backwards: Vec<_> = files.into_iter().rev().collect();
        assert!(archive(&files) == archive(&backwards));
    }

    #[test]
    fn the_systems_tar_reads_it() {
        let mut tar = Tar::default();
        tar.file("usr/bin/b", 0o755, vec![b'x'; 513]);
        tar.file("etc/a", 0o644, b"text".to_vec());
        let path = std::env::temp_dir().join(format!("culvert-tar-{}.tar", std::process::id()));
        std::fs::write(&path, tar.finish()).unwrap();
        let run = |flags: &str, files: &[&str]| {
            let mut tar = Command::new("tar");
            tar.env("TZ", "UTC")
                .args(["--numeric-owner", "--full-time", flags])
                .arg(&path)
                .args(files);
            culvert_lab::workspace::output(&mut tar).unwrap()
        };
        let (listed, text) = (run("-tvf", &[]), run("-xOf", &["etc/a"]));
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
            ]
        );
        assert_eq!(text, "text");
    }
}
