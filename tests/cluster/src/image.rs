//! Images of containers on all nodes.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::unpacked::Unpacked;
use culvert_lab::workspace;
use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cluster::Cluster;
use crate::runtime::{PAUSE, ctr};

/// A shell with the usual programs.
const BUSYBOX: &str = "local/busybox:1";

/// Loads an archive of images, of OCI's or of Docker's layout, on every node.
pub(crate) fn load(cluster: &Cluster, archive: &Path) -> Result<()> {
    for node in cluster.nodes()? {
        workspace::output(ctr(cluster, node).args(["images", "import"]).arg(archive))
            .with_context(|| format!("load {} on {node}", archive.display()))?;
    }
    Ok(())
}

/// Makes an image of a folder, with one layer, whose containers run `command`, and loads it on every
/// node.
pub(crate) fn make(cluster: &Cluster, name: &str, folder: &Path, command: &[String]) -> Result<()> {
    let work = cluster.on_disk("image");
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    let layer = work.join("layer.tar");
    pack(folder, create(&layer)?).with_context(|| format!("pack {}", folder.display()))?;
    let bytes = fs::read(&layer).with_context(|| format!("read {}", layer.display()))?;
    let image = work.join("image.tar");
    write_archive(create(&image)?, name, command, &bytes)
        .with_context(|| format!("write {}", image.display()))?;
    load(cluster, &image)?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))
}

/// Writes the layer: all of a folder.
fn pack(folder: &Path, layer: File) -> io::Result<()> {
    let mut archive = tar::Builder::new(layer);
    archive.follow_symlinks(false);
    archive.append_dir_all(".", folder)?;
    archive.finish()
}

/// Writes an archive of Docker's layout with one layer.
fn write_archive(image: File, name: &str, command: &[String], layer: &[u8]) -> Result<()> {
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": command, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(layer)))]},
    });
    let manifest = json!([{
        "Config": "config.json", "RepoTags": [format!("docker.io/{name}")], "Layers": ["layer.tar"],
    }]);
    let mut archive = tar::Builder::new(image);
    append(
        &mut archive,
        "manifest.json",
        manifest.to_string().as_bytes(),
    )?;
    append(&mut archive, "config.json", config.to_string().as_bytes())?;
    append(&mut archive, "layer.tar", layer)?;
    archive.finish()?;
    Ok(())
}

/// Makes what every cluster has: pause, and busybox of Debian.
pub(crate) fn make_basic(cluster: &Cluster) -> Result<()> {
    let folder = cluster.on_disk("busybox");
    for made in ["bin", "tmp"] {
        fs::create_dir_all(folder.join(made))
            .with_context(|| format!("create {}", folder.display()))?;
    }
    let busybox = Unpacked::Busybox.program();
    fs::copy(&busybox, folder.join("bin/busybox"))
        .with_context(|| format!("copy {}", busybox.display()))?;
    let applets = workspace::output(Command::new(&busybox).arg("--list"))?;
    for applet in applets.lines() {
        if applet == "busybox" {
            continue;
        }
        std::os::unix::fs::symlink("busybox", folder.join("bin").join(applet))
            .with_context(|| format!("name busybox {applet}"))?;
    }
    make(
        cluster,
        PAUSE,
        &folder,
        &["sleep".to_owned(), "1000000000".to_owned()],
    )?;
    make(cluster, BUSYBOX, &folder, &["sh".to_owned()])
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("create {}", path.display()))
}

fn append(archive: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    archive
        .append_data(&mut header, name, bytes)
        .with_context(|| format!("pack {name}"))
}
