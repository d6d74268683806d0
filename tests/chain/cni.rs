//! Containers that stock CNI plugins connect, as Debian has them, and others that do not reach edge
//! nodes by the host: on a bridge that has a card, and by macvlan.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::cloud_host::CloudHost;
use culvert_lab::culvert::{AGENT_ADMIN, Options};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::workspace;
use serde_json::json;

use crate::firewalls::row_is;
use crate::world::{self, GREET, World, xtask};

const EDGE: &[Host] = &[Host::Edge1];
/// Gives the plugin `$1` its settings.
const ADD: &str = r#"printf %s "$0" | "$1""#;
/// A bridge with a card of the host, here a tunnel, and with the container `$0`, whose gateway it is.
const BRIDGE: &str = "set -e
ip link add br0 type bridge
ip link add card type vxlan id 7 dstport 4789
ip link add lxc0 type veth peer name eth0 netns $0
for port in card lxc0; do ip link set $port master br0 up; done
ip addr add 10.246.0.1/24 dev br0
ip link set br0 up
sysctl -qw net.ipv4.ip_forward=1
nsenter --target $0 --net sh -ec '
  ip addr add 10.246.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.246.0.1'";
/// The container `$0` by macvlan on the card `wan`, with the address `$1` in the host's network.
const MACVLAN: &str = "set -e
ip link add eth0 netns $0 link wan type macvlan mode bridge
nsenter --target $0 --net sh -ec '
  ip addr add $0/32 dev eth0; ip link set eth0 up
  ip route add 203.0.113.1 dev eth0; ip route add default via 203.0.113.1' $1";
/// The address of such a container.
const CONTAINER: &str = "203.0.113.40";
/// The proxy's port for that of agents.
const NAME_PORT: u16 = 7452;

/// The network of a container, which exists as long as its process.
struct Container(Process);

impl Container {
    /// A network without links.
    fn start(world: &World<'_>) -> Result<Self> {
        let cloud = world.lab.site(Host::Cloud);
        let mut command = cloud.command("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let container = Self(cloud.start_process("container", &mut command)?);
        let program = format!("/proc/{}/comm", container.0.pid());
        wait::until("it has a network of its own", PATIENCE, || {
            let program = std::fs::read_to_string(&program)?;
            ensure!(program.trim() == "sleep", "{program}");
            Ok(())
        })?;
        Ok(container)
    }

    /// A pod of a plugin in 10.245.`number`.0/24.
    fn by_plugin(world: &World<'_>, plugin: &str, number: u8) -> Result<Self> {
        let pod = Self::start(world)?;
        let cloud = world.lab.site(Host::Cloud);
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
            .env("CNI_NETNS", format!("/proc/{}/ns/net", pod.0.pid()))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", folder);
        workspace::output(&mut add)?;
        Ok(pod)
    }

    /// Runs a script on its host, with its process and more.
    fn connect(&self, mut sh: Command, script: &str, more: &[&str]) -> Result<()> {
        sh.args(["-c", script, &self.0.pid().to_string()])
            .args(more);
        workspace::output(&mut sh).map(drop)
    }

    fn command(&self, world: &World<'_>, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let pid = self.0.pid().to_string();
        let mut command = world.lab.site(Host::Cloud).command("nsenter");
        command.args(["--target", &pid, "--net"]).arg(program);
        command
    }

    /// What edge-1 says to it at an address.
    fn greeting(&self, world: &World<'_>, host: &str) -> Result<Report> {
        let mut client = self.command(world, xtask());
        world::report(Client::listen(format!("{host}:{GREET}")).complete(&mut client)?)
    }

    /// Whether edge-1 answers at its address.
    fn is_served(&self, world: &World<'_>) -> Result<bool> {
        let once = Client::GiveUp {
            target: format!("10.0.3.7:{GREET}"),
            count: 1,
            patience: Duration::from_secs(3),
        };
        let mut client = self.command(world, xtask());
        let report = world::report(once.complete(&mut client)?)?;
        Ok(report == Report::Answered(1))
    }

    /// What the agent of edge-1 says by the name-routed port of the proxy.
    fn by_name(&self, world: &World<'_>) -> Result<String> {
        let mut curl = self.command(world, "curl");
        curl.args(["--silent", "--show-error", "--max-time", "5"]);
        curl.args(["--connect-to", &format!("::203.0.113.1:{NAME_PORT}")]);
        workspace::output(curl.arg(format!("http://edge-1:{AGENT_ADMIN}/readyz")))
    }
}

#[test]
fn pods_of_the_plugins_bridge_and_ptp_reach_edge_nodes_by_address_and_vip() {
    world::with(EDGE, Options::default(), |world| {
        let vip = world.vip(Host::Edge1, "vip4")?.to_string();
        let cloud = world.lab.site(Host::Cloud);
        cloud.output("sysctl", ["-qw", "net.ipv4.ip_forward=1"])?;
        for (plugin, number) in [("bridge", 1), ("ptp", 2)] {
            let pod = Container::by_plugin(world, plugin, number)?;
            for host in ["10.0.3.7", &vip] {
                let greeting = pod.greeting(world, host);
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

/// As LXC, libvirt and Proxmox have it.
#[test]
fn what_a_container_on_a_bridge_with_a_card_is_refused_is_a_warning_of_check() {
    world::with(EDGE, Options::default(), |world| {
        let container = Container::start(world)?;
        container.connect(world.lab.site(Host::Cloud).command("sh"), BRIDGE, &[])?;
        wait::until("the bridge counts as leading out", PATIENCE, || {
            let rules = world
                .lab
                .site(Host::Cloud)
                .output("nft", ["list", "table", "inet", "culvert"])?;
            ensure!(rules.contains("br0"), "not yet");
            Ok(())
        })?;
        ensure!(!container.is_served(world)?, "it is served");
        wait::until("check names the bridge", PATIENCE, || {
            row_is(world, "guard", "warning", &["br0", "--guard-allow"])
        })
    });
}

#[test]
fn a_container_by_macvlan_is_served_by_name_by_a_proxy_of_another_host_and_not_by_its_own() {
    let port = format!("[::]:{NAME_PORT}={AGENT_ADMIN}");
    let arguments = ["--name-client", "203.0.113.0/24", "--name-listen", &port];
    world::with(EDGE, world::proxy_options(arguments), |world| {
        CloudHost::add_all(world.lab)?;
        let here = Container::start(world)?;
        let cloud = world.lab.site(Host::Cloud);
        here.connect(cloud.command("sh"), MACVLAN, &[CONTAINER])?;
        ensure!(!here.is_served(world)?, "its packets do not pass the host");
        ensure!(here.by_name(world).is_err(), "it reaches its own host");

        let elsewhere = Container::start(world)?;
        let host = CloudHost::Second.command(world.lab, "sh");
        elsewhere.connect(host, MACVLAN, &[CONTAINER])?;
        cloud.output("ip", ["route", "add", CONTAINER, "dev", "cloud-2"])?;
        let said = elsewhere.by_name(world)?;
        ensure!(said.trim_end() == "ok", "{said}");
        Ok(())
    });
}
