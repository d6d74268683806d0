//! `install`, `uninstall` and `check`: kubelet's kubeconfig leads to the hub, and back.
//!
//! Kubelet gets a certificate of the local authority, good on any date. A kubelet that renews its
//! certificate by itself goes on with the one of the cluster, which the hub takes too, and goes
//! back to the local one when the other has expired.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use culvert_daemon::write_atomic;

use crate::authority::LocalAuthority;
use crate::kubeconfig::Kubeconfig;
use crate::state_dir::StateDir;

/// Files in the state directory.
const CERTIFICATE: &str = "kubelet.crt";
const KEY: &str = "kubelet.key";
/// The kubeconfig that `install` has written, to see whether it was changed since.
const INSTALLED: &str = "kubelet.kubeconfig";

/// One kubelet and its hub.
#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) state: StateDir,
    pub(crate) kubeconfig: PathBuf,
    /// Where the hub listens.
    pub(crate) listen: SocketAddr,
}

/// What is the case.
#[derive(Debug, PartialEq, Eq)]
enum Present {
    NotInstalled,
    Installed,
    /// The kubeconfig was changed after `install`.
    Changed,
}

/// Points kubelet to the hub.
///
/// # Errors
/// The kubeconfig is not one of a node, or a file cannot be written. What was not written yet stays
/// as it was.
pub(crate) fn install(installation: &Installation) -> Result<()> {
    match installation.present()? {
        Present::Installed => {
            println!("installed already: nothing changed");
            return Ok(());
        }
        Present::Changed => bail!(
            "{} was changed after an earlier install: uninstall cannot put that back; remove {} \
             if the present file is the original",
            installation.kubeconfig.display(),
            installation.state.cloud_kubeconfig().display()
        ),
        Present::NotInstalled => {}
    }
    let original = installation.original()?;
    let authority = LocalAuthority::open(&installation.state)?;
    let issued = authority.issue_for_kubelet()?;
    let new = installation.new_kubeconfig();
    let state = &installation.state;
    // The original is kept before anything else is written; kubelet's own file comes last.
    write(&state.cloud_kubeconfig(), &original, 0o600)?;
    write(
        &state.local(CERTIFICATE),
        issued.certificate.as_bytes(),
        0o644,
    )?;
    write(&state.local(KEY), issued.key.as_bytes(), 0o600)?;
    write(&state.local(INSTALLED), new.as_bytes(), 0o600)?;
    let mode = mode_of(&installation.kubeconfig)?;
    write(&installation.kubeconfig, new.as_bytes(), mode)?;
    println!("{} leads to the hub now", installation.kubeconfig.display());
    println!("next: systemctl enable --now culvert-hub && systemctl restart kubelet");
    Ok(())
}

/// Puts kubelet's kubeconfig back.
///
/// # Errors
/// Nothing is installed, or the kubeconfig was changed since.
pub(crate) fn uninstall(installation: &Installation) -> Result<()> {
    let path = &installation.kubeconfig;
    match installation.present()? {
        Present::NotInstalled => bail!("not installed: {} is as it was", path.display()),
        Present::Changed => bail!(
            "{} was changed after install; the original is {}",
            path.display(),
            installation.state.cloud_kubeconfig().display()
        ),
        Present::Installed => {}
    }
    let kept = installation.state.cloud_kubeconfig();
    let original = read(&kept)?;
    write(path, &original, mode_of(path)?)?;
    let absolute = std::path::absolute(path)
        .with_context(|| format!("find the folder of {}", path.display()))?;
    let named = absolute.as_os_str().as_bytes();
    write(&installation.state.uninstalled(), named, 0o600)?;
    // Last: until here, uninstall can be repeated.
    std::fs::remove_file(&kept).with_context(|| format!("remove {}", kept.display()))?;
    println!("{} is as it was before install", path.display());
    println!(
        "next: systemctl restart kubelet. Pods that run were led to the hub, and kubelet soon takes \
         the hub's certificate authority out of their volumes: delete them, so that they are made \
         again; then systemctl disable --now culvert-hub"
    );
    Ok(())
}

/// Says what `install` would change.
///
/// # Errors
/// The kubeconfig cannot be used.
pub(crate) fn check(installation: &Installation) -> Result<()> {
    let path = installation.kubeconfig.display();
    match installation.present()? {
        Present::Installed => println!("installed: {path} leads to the hub"),
        Present::Changed => println!("{path} was changed after install"),
        Present::NotInstalled => {
            let cloud = Kubeconfig::parse(&installation.kubeconfig, &installation.original()?)?;
            let state = installation.state.path().display();
            println!(
                "install would keep {path}, which leads to {}, in {state},",
                cloud.server
            );
            println!(
                "and write another one there:\n{}",
                installation.new_kubeconfig()
            );
        }
    }
    Ok(())
}

impl Installation {
    fn present(&self) -> Result<Present> {
        if !self.state.cloud_kubeconfig().exists() {
            return Ok(Present::NotInstalled);
        }
        let now = read(&self.kubeconfig)?;
        if now == read(&self.state.cloud_kubeconfig())? {
            // Cut short, in install or in uninstall: kubelet's file is the original.
            return Ok(Present::NotInstalled);
        }
        let installed = self.state.local(INSTALLED);
        let same = installed.exists() && read(&installed)? == now;
        Ok(if same {
            Present::Installed
        } else {
            Present::Changed
        })
    }

    /// Kubelet's kubeconfig as it is, if it can lead the hub to the API server.
    fn original(&self) -> Result<Vec<u8>> {
        let bytes = read(&self.kubeconfig).context("--kubelet-kubeconfig")?;
        let cloud = Kubeconfig::parse(&self.kubeconfig, &bytes)?;
        let port = cloud.server.port_u16();
        let leads_here = port == Some(self.listen.port())
            && matches!(cloud.server.host(), Some("127.0.0.1" | "localhost"));
        ensure!(
            !leads_here,
            "{} leads to {} already, and its original is not in {}",
            self.kubeconfig.display(),
            cloud.server,
            self.state.path().display()
        );
        Ok(bytes)
    }

    /// The path of a file of the local authority, as YAML has it.
    fn quoted(&self, name: &str) -> String {
        format!("{:?}", self.state.local(name).display().to_string())
    }

    fn new_kubeconfig(&self) -> String {
        format!(
            "# Written by `culvert-hub install`; `culvert-hub uninstall` puts the original back.\n\
             apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: culvert-hub\n  cluster:\n    server: https://{listen}\n    \
             certificate-authority: {ca}\n\
             users:\n\
             - name: kubelet\n  user:\n    client-certificate: {certificate}\n    \
             client-key: {key}\n\
             contexts:\n\
             - name: culvert-hub\n  context:\n    cluster: culvert-hub\n    user: kubelet\n\
             current-context: culvert-hub\n",
            listen = self.listen,
            ca = self.quoted("ca.crt"),
            certificate = self.quoted(CERTIFICATE),
            key = self.quoted(KEY),
        )
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, contents: &[u8], mode: u32) -> Result<()> {
    write_atomic(path, contents, mode).with_context(|| format!("write {}", path.display()))
}

fn mode_of(path: &Path) -> Result<u32> {
    let metadata = std::fs::metadata(path).with_context(|| format!("read {}", path.display()))?;
    Ok(metadata.permissions().mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubeconfig::NodeCredential;

    const ORIGINAL: &str = "# kubeadm's own words\r\napiVersion: v1\nkind: Config\nclusters:\n\
        - cluster: {certificate-authority: /ca, server: 'https://10.0.0.1:6443'}\n  name: k\n\
        users:\n- name: n\n  user: {client-certificate: /c, client-key: /k}\n\
        contexts:\n- context: {cluster: k, user: n}\n  name: x\ncurrent-context: x";

    fn node(directory: &tempfile::TempDir) -> Installation {
        let kubeconfig = directory.path().join("kubelet.conf");
        std::fs::write(&kubeconfig, ORIGINAL).unwrap();
        std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o640)).unwrap();
        Installation {
            state: StateDir::new(directory.path().join("hub")),
            kubeconfig,
            listen: "127.0.0.1:7440".parse().unwrap(),
        }
    }

    #[test]
    fn kubelet_is_led_to_the_hub_and_back_byte_for_byte() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(&directory);
        install(&node).unwrap();
        let installed = Kubeconfig::read(&node.kubeconfig).unwrap();
        assert_eq!(installed.server, "https://127.0.0.1:7440");
        let NodeCredential::Certificate { key, .. } = installed.credential else {
            panic!("kubelet shows the hub a certificate");
        };
        key.read().unwrap();
        let cloud = Kubeconfig::read(&node.state.cloud_kubeconfig()).unwrap();
        assert_eq!(cloud.server.host(), Some("10.0.0.1"));
        install(&node).expect("a second time changes nothing");
        uninstall(&node).unwrap();
        assert_eq!(read(&node.kubeconfig).unwrap(), ORIGINAL.as_bytes());
        assert_eq!(mode_of(&node.kubeconfig).unwrap(), 0o640);
        uninstall(&node).unwrap_err();
    }

    #[test]
    fn a_full_disk_leaves_kubelet_as_it_was_and_a_second_try_installs() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(&directory);
        let local = directory.path().join("hub/local");
        std::fs::create_dir_all(&local).unwrap();
        let last_written = directory.path().join(".kubelet.conf.new");
        for in_the_way in [local.join(".ca.key.new"), last_written] {
            std::fs::create_dir(&in_the_way).unwrap();
            install(&node).unwrap_err();
            assert_eq!(read(&node.kubeconfig).unwrap(), ORIGINAL.as_bytes());
            std::fs::remove_dir(&in_the_way).unwrap();
        }
        install(&node).unwrap();
        uninstall(&node).unwrap();
        assert_eq!(read(&node.kubeconfig).unwrap(), ORIGINAL.as_bytes());
    }

    #[test]
    fn a_kubeconfig_that_somebody_changed_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let node = node(&directory);
        install(&node).unwrap();
        std::fs::write(&node.kubeconfig, "mine").unwrap();
        uninstall(&node).unwrap_err();
        install(&node).unwrap_err();
        assert_eq!(read(&node.kubeconfig).unwrap(), b"mine");
    }
}
