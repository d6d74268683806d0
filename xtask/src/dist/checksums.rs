//! `SHA256SUMS`, and its signature by an SSH key.

use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

const SUMS: &str = "SHA256SUMS";
/// What the signature is for, so that it is good for nothing else.
const NAMESPACE: &str = "culvert";

/// Writes `SHA256SUMS`, as `sha256sum --check` reads it, and with a key `SHA256SUMS.sig`. Of the files
/// that the `SHA256SUMS` before names, only the given ones stay: two versions in one folder would
/// both match the patterns of those who install.
pub(super) fn write(files: &[PathBuf], key: Option<&Path>, folder: &Path) -> Result<()> {
    let sums = files.iter().map(|file| line(file, folder));
    let sums: String = sums.collect::<Result<_>>()?;
    let path = folder.join(SUMS);
    remove_earlier(files, folder)?;
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

fn remove_earlier(files: &[PathBuf], folder: &Path) -> Result<()> {
    let earlier = std::fs::read_to_string(folder.join(SUMS)).unwrap_or_default();
    let names = earlier.lines().filter_map(|line| line.split_once("  "));
    for (_, name) in names {
        let file = folder.join(name);
        // A sum is written for files of this folder and below.
        let is_inside = Path::new(name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if is_inside && file.is_file() && !files.contains(&file) {
            std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
    }
    Ok(())
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
        write(&[path("package.deb")], Some(&path("key")), folder.path()).expect("sign");
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
    fn files_of_the_call_before_are_removed_and_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let [earlier, kept, others] = ["a_1.deb", "a_2.deb", "others"].map(|name| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).expect("write");
            path
        });
        write(&[earlier.clone(), kept.clone()], None, folder.path()).expect("sums");
        write(std::slice::from_ref(&kept), None, folder.path()).expect("sums");
        assert!(!earlier.exists() && kept.exists() && others.exists());
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
