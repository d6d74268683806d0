//! `culvert-redirector uninstall`.

use std::path::Path;

use anyhow::Result;

use crate::directory::SavedDirectory;
use crate::mechanisms::bpf::Pins;
use crate::mechanisms::nft;
use crate::mechanisms::vip_routes::Routes;
use crate::steering::InstanceLock;

/// Removes everything from the host. What steers is removed first.
pub(crate) async fn uninstall(bpffs: &Path, state_dir: &Path) -> Result<String> {
    let _lock = InstanceLock::acquire_existing(state_dir, bpffs)?;
    let mut lines = Vec::new();
    for pin in Pins::new(bpffs).remove()? {
        lines.push(format!("removed pin {}\n", pin.display()));
    }
    if nft::remove().await? {
        lines.push("removed table inet culvert\n".to_owned());
    }
    for route in Routes::open()?.remove().await? {
        lines.push(format!("removed route {}\n", route.net));
    }
    SavedDirectory::new(state_dir).remove()?;
    if lines.is_empty() {
        lines.push("nothing was installed\n".to_owned());
    }
    Ok(lines.concat())
}
