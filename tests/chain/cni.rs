//! Pods that stock CNI plugins connect, as Debian has them.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;
use serde_json::json;

use crate::world::{self, GREET, World, xtask};

const EDGE: &[Host] = &[Host::Edge1];
/// Gives the plugin `$1` its settings.
const ADD: &str = r#"printf %s "$0" | "$1""#;

/// A pod's network, which exists as long as its process.
struct Pod(Process);

impl Pod {
    /// A pod in 10.245.`number`.0/24.
    fn start(world: &World<'_>, plugin: &str, number: u8) -> Result<Self> {
        let cloud = world.lab.site(Host::Cloud);
        let mut command = cloud.command("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let pod = Self(cloud.start_process("pod", &mut command)?);
        let process = format!("/proc/{}", pod.0.pid());
        wait::until("the pod has a network of its own", PATIENCE, || {
            let program = std::fs::read_to_string(format!("{process}/comm"))?;
            ensure!(program.trim() == "sleep", "{program}");
            Ok(())
        })?;
        let folder = Unpacked::CniPlugins.program();
        let folder = folder.parent().context("a folder")?;
        let subnet = format!("10.245.{number}.0/24");
        let settings = json!({
            "cniVersion": "0.4.0", "name": plugin, "type": plugin, "bridge": "cni0",
            "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "ranges": [[{"subnet": subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}], "dataDir": cloud.file("ipam"),
            },
        });
        let mut add = cloud.command("sh");
        add.args(["-c", ADD, &settings.to_string()])
            .arg(folder.join(plugin))
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", plugin)
            .env("CNI_NETNS", format!("{process}/ns/net"))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", folder);
        workspace::output(&mut add)?;
        Ok(pod)
    }

    fn command(&self, world: &World<'_>, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let pid = self.0.pid().to_string();
        let mut command = world.lab.site(Host::Cloud).command("nsenter");
        command.args(["--target", &pid, "--net"]).arg(program);
        command
    }
}

#[test]
fn pods_of_the_plugins_bridge_and_ptp_reach_edge_nodes_by_address_and_vip() {
    world::with(EDGE, Options::default(), |world| {
        let vip = world.vip(Host::Edge1, "vip4")?.to_string();
        let cloud = world.lab.site(Host::Cloud);
        cloud.output("sysctl", ["-qw", "net.ipv4.ip_forward=1"])?;
        for (plugin, number) in [("bridge", 1), ("ptp", 2)] {
            let pod = Pod::start(world, plugin, number)?;
            for host in ["10.0.3.7", &vip] {
                let mut client = pod.command(world, xtask());
                let greet = Client::listen(format!("{host}:{GREET}"));
                let greeting = world::report(greet.complete(&mut client)?);
                let greeting = greeting.with_context(|| format!("{plugin}, {host}"))?;
                ensure!(
                    greeting == Report::Answer("hello from edge-1".to_owned()),
                    "{plugin}, {host}: {greeting:?}"
                );
            }
        }
        Ok(())
    });
}
