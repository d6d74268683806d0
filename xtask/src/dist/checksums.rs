//! `SHA256SUMS`, and its signature by an SSH key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

const SUMS: &str = "SHA256SUMS";
/// What the signature is for, so that it is good for nothing else.
const NAMESPACE: &str = "culvert";

/// Writes `SHA256SUMS`, as `sha256sum --check` reads it, and with a key `SHA256SUMS.sig`. Of the files
/// that the `SHA256SUMS` before names, those are removed that are another version of a given file:
/// both would match the patterns of those who install.
pub(super) fn write(
    files: &[PathBuf],
    version: &str,
    key: Option<&Path>,
    folder: &Path,
) -> Result<()> {
    let sums = files.iter().map(|file| line(file, folder));
    let sums: String = sums.collect::<Result<_>>()?;
    let path = folder.join(SUMS);
    remove_other_versions(files, version, folder)?;
    std::fs::write(&path, sums).with_context(|| format!("write {}", path.display()))?;
    let signature = folder.join(format!("{SUMS}.sig"));
    // ssh-keygen does not replace one, and an old one would be wrong.
    if signature.exists() {
        std::fs::remove_file(&signature)?;
    }
    let Some(key) = key else { return Ok(()) };
    let mut sign = Command::new("ssh-keygen");
    sign.args(["-Y", "sign", "-n", NAMESPACE, "-f"]).arg(key);
    // May ask for the passphrase of the key.
    let status = sign.arg(&path).status().context("run ssh-keygen")?;
    ensure!(status.success(), "ssh-keygen ended with {status}");
    Ok(())
}

fn remove_other_versions(files: &[PathBuf], version: &str, folder: &Path) -> Result<()> {
    let sums = folder.join(SUMS);
    let earlier = match std::fs::read_to_string(&sums) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("read {}", sums.display()))?,
    };
    for line in earlier.lines() {
        let Some((_, name)) = line.split_once("  ") else {
            continue;
        };
        let file = folder.join(name);
        if has_other_version(files, name, version) && file.is_file() {
            std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
    }
    Ok(())
}

/// Whether a name is that of one of these files with another version.
fn has_other_version(files: &[PathBuf], name: &str, version: &str) -> bool {
    for file in files {
        if let Some(given) = file.file_name()
            && let Some(given) = given.to_str()
            && is_other_version(name, given, version)
        {
            return true;
        }
    }
    false
}

/// Whether a file's name is that of `given` with something else in place of `version`.
fn is_other_version(name: &str, given: &str, version: &str) -> bool {
    let Some((begin, end)) = given.split_once(version) else {
        return false;
    };
    let Some(rest) = name.strip_prefix(begin) else {
        return false;
    };
    let Some(other) = rest.strip_suffix(end) else {
        return false;
    };
    other != version && other.starts_with(|c: char| c.is_ascii_digit()) && !other.contains('/')
}

fn line(file: &Path, folder: &Path) -> Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let name = file.strip_prefix(folder).context("it is in the folder")?;
    let sum = HEXLOWER.encode(&Sha256::digest(&bytes));
    Ok(format!("{sum}  {}\n", name.display()))
}

#[cfg(test)]
mod tests {
    use culvert_lab::workspace;

    use super::*;

    /// A folder with a file, its sum, and the signature of a new key, which `signers` allows.
    fn signed() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("package.deb"), "contents").expect("write");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
        workspace::output(keygen.arg(path("key"))).expect("make a key");
        let public = std::fs::read_to_string(path("key.pub")).expect("read");
        std::fs::write(path("signers"), format!("release {public}")).expect("write");
        write(
            &[path("package.deb")],
            "1",
            Some(&path("key")),
            folder.path(),
        )
        .expect("sign");
        folder
    }

    /// What docs/packages.md tells users to run.
    fn verified(folder: &Path) -> bool {
        let check = "ssh-keygen -Y verify -f signers -I release -n culvert -s SHA256SUMS.sig \
                     <SHA256SUMS && sha256sum --check --strict SHA256SUMS";
        let mut shell = Command::new("sh");
        let done = shell.args(["-c", check]).current_dir(folder).output();
        done.expect("run sh").status.success()
    }

    #[test]
    fn what_is_signed_is_verified_by_the_public_key() {
        assert!(verified(signed().path()));
    }

    #[test]
    fn other_versions_of_the_files_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let [earlier, now, other_package, foreign] = [
            "culvert-hub_0.9_amd64.deb",
            "culvert-hub_1.0_amd64.deb",
            "culvert-hub_0.9_arm64.deb",
            "debian-12.iso",
        ]
        .map(|name| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).expect("write");
            path
        });
        let all = [
            earlier.clone(),
            now.clone(),
            other_package.clone(),
            foreign.clone(),
        ];
        write(&all, "1.0", None, folder.path()).expect("sums");
        assert!(earlier.exists(), "no sums named it before");
        write(std::slice::from_ref(&now), "1.0", None, folder.path()).expect("sums");
        assert!(!earlier.exists());
        assert!(now.exists() && other_package.exists() && foreign.exists());
    }

    #[test]
    fn a_changed_file_and_a_changed_sum_are_not_verified() {
        let folder = signed();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("package.deb"), "others").expect("write");
        assert!(!verified(folder.path()));
        let line = line(&path("package.deb"), folder.path()).expect("sum");
        std::fs::write(path(SUMS), line).expect("write");
        assert!(!verified(folder.path()));
    }
}
