//! The namespaces and links of a lab, and the filters of its routers.

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::host::Host;
use crate::{LabName, workspace};

/// The router between the sites.
pub(crate) const INTERNET: &str = "internet";

/// The pod of the cloud host, if there is one.
const POD: &str = "pod";

/// The hosts of the cloud behind the first one.
pub(crate) const FURTHER_CLOUD_HOSTS: [&str; 2] = ["cloud-2", "cloud-3"];

/// The folder of the names of network namespaces.
pub(crate) const NAMES: &str = "/run/netns";

/// The cloud's IPv6 network. It ends at the router, but gives the cloud host an IPv6 address and a
/// default route.
const CLOUD_V6: (&str, &str) = ("fd00:203:0:113::1", "fd00:203:0:113::2");

/// Creates all namespaces, links, addresses, routes and rules.
pub(crate) fn make(name: &LabName) -> Result<()> {
    let internet = name.netns(INTERNET);
    let mut links = format!("netns add {internet}\n");
    for host in Host::ALL {
        let site = name.netns(host.name());
        let link = host.router_link();
        links += &format!(
            "netns add {site}\nlink add wan netns {site} type veth peer name {link} netns \
             {internet}\n"
        );
    }
    ip_batch(&[], &links)?;
    ip_batch(&["-n", &internet], &router_commands())?;
    inside(&internet, "sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    for host in Host::ALL {
        let site = name.netns(host.name());
        ip_batch(&["-n", &site], &site_commands(host))?;
        if host != Host::Cloud {
            nft(&site, SITE_RULES)?;
        }
    }
    Ok(())
}

/// Creates a pod's namespace behind the cloud host; returns its name.
pub(crate) fn make_pod(name: &LabName) -> Result<String> {
    let cloud = name.netns(Host::Cloud.name());
    let pod = name.netns(POD);
    ip_batch(
        &[],
        &format!(
            "netns add {pod}\nlink add eth0 netns {pod} type veth peer name pod netns {cloud}\n"
        ),
    )?;
    ip_batch(
        &["-n", &cloud],
        "addr add 10.244.0.1/24 dev pod\nlink set pod up\n",
    )?;
    let commands = "link set lo up\naddr add 10.244.0.2/24 dev eth0\nlink set eth0 up\nroute add \
        default via 10.244.0.1\n";
    ip_batch(&["-n", &pod], commands)?;
    inside(&cloud, "sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    Ok(pod)
}

/// Creates the namespace of a further host of the cloud, with the address `own`, behind the first
/// one. `link` is its name and that of the first one's link to it.
pub(crate) fn make_cloud_host(
    name: &LabName,
    link: &str,
    own: Ipv4Addr,
    first: Ipv4Addr,
) -> Result<()> {
    let cloud = name.netns(Host::Cloud.name());
    let netns = name.netns(link);
    ip_batch(
        &[],
        &format!(
            "netns add {netns}\nlink add wan netns {netns} type veth peer name {link} netns \
             {cloud}\n"
        ),
    )?;
    let commands = format!("link set {link} up\nroute add {own} dev {link} src {first}\n");
    ip_batch(&["-n", &cloud], &commands)?;
    let commands = format!(
        "link set lo up\naddr add {own}/32 dev wan\nlink set wan up\nroute add {first} dev \
         wan\nroute add default via {first}\n"
    );
    ip_batch(&["-n", &netns], &commands)?;
    let route = format!("route add {own} via {first}\n");
    ip_batch(&["-n", &name.netns(INTERNET)], &route)?;
    inside(&cloud, "sysctl", &["-qw", "net.ipv4.ip_forward=1"])
}

/// Gives an edge another address in the internet, on the same link: first it loses the one that it
/// has. The kernel is told that MPTCP may use the new one.
pub(crate) fn move_edge(name: &LabName, host: Host) -> Result<()> {
    let site = name.netns(host.name());
    let link = host.router_link();
    let (old, _) = host.wan();
    let (own, router) = host.second_wan();
    let gateway = address_of(&router);
    let commands = format!(
        "addr del {old} dev wan\naddr add {own} dev wan\nroute add default via {gateway}\n"
    );
    ip_batch(
        &["-n", &name.netns(INTERNET)],
        &format!("addr add {router} dev {link}\n"),
    )?;
    ip_batch(&["-n", &site], &commands)?;
    let endpoint = [
        "mptcp",
        "endpoint",
        "add",
        address_of(&own),
        "dev",
        "wan",
        "subflow",
    ];
    inside(&site, "ip", &endpoint)
}

/// Removes all namespaces of that name, and with them everything in them.
pub(crate) fn remove(name: &LabName) -> Result<()> {
    let others = [INTERNET, POD].into_iter().chain(FURTHER_CLOUD_HOSTS);
    for host in Host::ALL.map(Host::name).into_iter().chain(others) {
        let netns = name.netns(host);
        if std::path::Path::new(NAMES).join(&netns).exists() {
            workspace::output(Command::new("ip").args(["netns", "delete", &netns]))?;
        }
    }
    Ok(())
}

/// Applies nftables rules in a namespace.
pub(crate) fn nft(netns: &str, rules: &str) -> Result<()> {
    feed(
        Command::new("ip").args(["netns", "exec", netns, "nft", "-f", "-"]),
        rules,
    )
}

/// Rules of an edge site's router, which is the node itself: it dials out from its WAN address, and
/// drops all incoming connections.
const SITE_RULES: &str = "
table ip site {
  chain inward { type filter hook input priority filter; iifname \"wan\" ct state new drop; }
  chain through { type filter hook forward priority filter; iifname \"wan\" ct state new drop; }
  chain out { type nat hook postrouting priority srcnat; ip saddr { 10.0.0.0/8, 192.168.0.0/16 } oifname \"wan\" masquerade; }
}";

fn router_commands() -> String {
    let mut commands = String::from("link set lo up\n");
    for host in Host::ALL {
        let link = host.router_link();
        commands += &format!("addr add {} dev {link}\nlink set {link} up\n", host.wan().1);
    }
    commands += &format!(
        "addr add {}/64 dev {} nodad\n",
        CLOUD_V6.1,
        Host::Cloud.router_link()
    );
    // As in the real internet, packets to private addresses are dropped without an answer.
    for range in [
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "198.18.0.0/15",
    ] {
        commands += &format!("route add blackhole {range}\n");
    }
    commands
}

fn site_commands(host: Host) -> String {
    let (own, router) = host.wan();
    let gateway = address_of(&router);
    let mut commands = format!(
        "link set lo up\naddr add {own} dev wan\nlink set wan up\nroute add default via {gateway}\n"
    );
    if host == Host::Cloud {
        commands += &format!(
            "addr add {}/64 dev wan nodad\nroute add default via {} dev wan\n",
            CLOUD_V6.0, CLOUD_V6.1
        );
    } else {
        commands += &format!("addr add {}/32 dev lo\n", host.address());
    }
    commands
}

/// Without the length of the prefix.
fn address_of(cidr: &str) -> &str {
    cidr.split('/').next().unwrap_or_default()
}

fn inside(netns: &str, program: &str, args: &[&str]) -> Result<()> {
    workspace::output(
        Command::new("ip")
            .args(["netns", "exec", netns, program])
            .args(args),
    )?;
    Ok(())
}

fn ip_batch(options: &[&str], commands: &str) -> Result<()> {
    feed(
        Command::new("ip").args(options).args(["-batch", "-"]),
        commands,
    )
}

fn feed(command: &mut Command, text: &str) -> Result<()> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("stdin was piped")?
        .write_all(text.as_bytes())?;
    let done = child.wait_with_output()?;
    ensure!(
        done.status.success(),
        "{command:?} with\n{text}\nsaid: {}",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}
