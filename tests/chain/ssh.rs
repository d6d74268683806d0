//! A stock ssh and scp, which come to a node by the lines of `culvert ssh-config`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::sshd::Sshd;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;

use crate::forwards::{SSH, start_sshd};
use crate::world::{self, World};

/// More than all buffers on the way have.
const FILE_BYTES: u32 = 16 << 20;

#[test]
fn ssh_and_scp_come_to_a_node_by_the_lines_of_ssh_config() {
    let mut options = Options::default();
    options.ports.push(SSH);
    world::with(&[Host::Edge1], options, |world| {
        let edge = world.lab.site(Host::Edge1);
        let sshd = Sshd::make(edge.folder())?;
        sshd.make_known("edge-1")?;
        let _server = start_sshd(&sshd, edge)?;
        let configuration = write_configuration(world, &sshd)?;
        wait::until("ssh logs in", PATIENCE, || {
            let mut ssh = client(world, "ssh", &configuration)?;
            let said = workspace::output(ssh.args(["edge-1", "hostname"]))?;
            ensure!(said.trim() == "edge-1", "{said}");
            Ok(())
        })?;
        let mut ssh = client(world, "ssh", &configuration)?;
        let status = ssh.args(["edge-1", "exit 7"]).status()?;
        ensure!(status.code() == Some(7), "{status}");
        copy_there_and_back(world, &configuration)?;
        world.wait_proxy_log(
            "stream ended",
            &[
                ("frontend", "connect_socket"),
                ("original_dst", "edge-1:22"),
            ],
        )
    });
}

fn copy_there_and_back(world: &World<'_>, configuration: &Path) -> Result<()> {
    let cloud = world.lab.site(Host::Cloud);
    let sent = cloud.file("sent");
    let back = cloud.file("back");
    let there = world.lab.site(Host::Edge1).file("there");
    let mut bytes = Vec::new();
    for number in 0..FILE_BYTES / 4 {
        bytes.extend(number.wrapping_mul(0x9e37_79b9).to_le_bytes());
    }
    std::fs::write(&sent, &bytes)?;
    let remote = format!("edge-1:{}", there.display());
    let mut scp = client(world, "scp", configuration)?;
    workspace::output(scp.arg(&sent).arg(&remote))?;
    ensure!(std::fs::read(&there)? == bytes, "other bytes came there");
    let mut scp = client(world, "scp", configuration)?;
    workspace::output(scp.arg(&remote).arg(&back))?;
    ensure!(std::fs::read(&back)? == bytes, "other bytes came back");
    Ok(())
}

/// What `culvert ssh-config` prints, and below it the keys.
fn write_configuration(world: &World<'_>, sshd: &Sshd) -> Result<PathBuf> {
    let mut lines = workspace::output(&mut world.culvert.control(&["ssh-config"]))?;
    ensure!(lines.starts_with("Host edge-1\n"), "{lines}");
    let cloud = world.lab.site(Host::Cloud);
    lines += &format!(
        "Host *\n  User root\n  BatchMode yes\n  IdentityFile {}\n  UserKnownHostsFile {}\n",
        sshd.user_key().display(),
        sshd.known_hosts().display()
    );
    let file = cloud.file("ssh_config");
    std::fs::write(&file, lines).context("write ssh's configuration")?;
    Ok(file)
}

/// A program of OpenSSH in the cloud.
fn client(world: &World<'_>, program: &str, configuration: &Path) -> Result<Command> {
    let culvert = workspace::binary("culvert");
    let mut command = world.lab.site(Host::Cloud).command(program);
    command
        .env("PATH", workspace::path_with_folder_of(&culvert)?)
        .arg("-F")
        .arg(configuration);
    Ok(command)
}
