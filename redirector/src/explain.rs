//! `culvert-redirector explain`: what the kernel would do with a connection, and why, from the pinned maps and the saved
//! directory, without the daemon.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use culvert_redirector_common::names::{CONNECT4, CONNECT6, SOCKOPS};
use culvert_redirector_common::{Connect, DestinationValue, Pass, Reject, Verdict, decide};
use culvert_tunnel::NodeName;

use crate::args::Places;
use crate::bpf::{Hook, KernelConfig, Pins, Tables};
use crate::directory::{Directory, Routing, Saved};
use crate::dns::Zone;
use crate::kernel::now_ns;
use crate::nft;
use crate::plan::Destination;

/// Stands for any port of a VIP, where all are alike; nobody can dial it.
const ANY_PORT: u16 = 0;

/// Explains `IP:PORT`, a node's name, or `NAME:PORT`.
pub(crate) async fn explain(places: &Places, destination: &str) -> Result<String> {
    let directory = Saved::new(&places.state_dir).load()?.unwrap_or_default();
    let zone: Zone = places.dns_zone.parse()?;
    let pins = Pins::new(&places.bpffs);
    let tables = if pins.any_map() { Some(Tables::open(&pins)?) } else { None };
    let hooks = Hook::read_all(&pins)?;
    let mut out = String::new();
    for address in resolve(&directory, &zone, destination)? {
        let kernel = match &tables {
            Some(tables) => Some(Kernel::read(tables, address)?),
            None => None,
        };
        match address.port() {
            ANY_PORT => writeln!(out, "{}, any port", address.ip())?,
            _ => writeln!(out, "{address}")?,
        }
        writeln!(out, "  directory  {}", by_directory(&directory, address))?;
        writeln!(out, "  hooks      {}", by_hooks(kernel.as_ref(), attachment(&hooks, address), address))?;
        writeln!(out, "  nftables   {}", by_nftables(&directory, address).await)?;
    }
    Ok(out)
}

/// The addresses that a client of `destination` would dial.
fn resolve(directory: &Directory, zone: &Zone, destination: &str) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = SocketAddr::from_str(destination) {
        return Ok(vec![SocketAddr::new(address.ip().to_canonical(), address.port())]);
    }
    let (name, port) = match destination.rsplit_once(':') {
        _ if destination.parse::<IpAddr>().is_ok() => bail!("{destination} needs a port, such as :10250 behind it"),
        Some((name, port)) => (name, port.parse().with_context(|| format!("{port:?} is not a port"))?),
        None => (destination, ANY_PORT),
    };
    let lower = name.trim_end_matches('.').to_ascii_lowercase();
    let bare = lower.strip_suffix(&format!(".{zone}")).unwrap_or(&lower);
    let name: NodeName =
        bare.parse().with_context(|| format!("{destination:?} is neither IP:PORT nor a node's name"))?;
    let Some(node) = directory.nodes.get(&name) else {
        bail!("no node {name} in the saved directory; on the proxy's host: culvert-proxy node list");
    };
    let vips = node.vip4.map(IpAddr::V4).into_iter().chain(node.vip6.map(IpAddr::V6));
    Ok(vips.map(|vip| SocketAddr::new(vip, port)).collect())
}

/// What the kernel programs would see.
struct Kernel {
    config: KernelConfig,
    value: Option<DestinationValue>,
    now_ns: u64,
}

impl Kernel {
    fn read(tables: &Tables, address: SocketAddr) -> Result<Self> {
        let config = tables.config()?;
        let vip = config.vip4.contains(&address.ip().into()) || config.vip6.contains(&address.ip().into());
        let destination = if vip { Destination::Vip(address.ip()) } else { Destination::Edge(address) };
        Ok(Self { config, value: tables.destination(&destination.key())?, now_ns: now_ns()? })
    }

    /// Asks the very function that the programs run.
    fn verdict(&self, address: SocketAddr) -> Verdict {
        decide(&self.config, &Connect { dst: address.into(), mark: 0 }, |_key| self.value, || self.now_ns)
    }
}

/// Whether connects meet our programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attachment {
    Attached,
    Detached,
}

/// Of the hook of the address' own family. An IPv6 socket that dials IPv4 meets the other one.
fn attachment(hooks: &[Hook], address: SocketAddr) -> Attachment {
    let program = if address.is_ipv4() { CONNECT4 } else { CONNECT6 };
    let detached = hooks.iter().any(|hook| [program, SOCKOPS].contains(&hook.program) && !hook.is_attached());
    if detached { Attachment::Detached } else { Attachment::Attached }
}

fn by_hooks(kernel: Option<&Kernel>, attachment: Attachment, address: SocketAddr) -> String {
    let Some(kernel) = kernel.filter(|_| attachment == Attachment::Attached) else {
        return "not attached".to_owned();
    };
    match kernel.verdict(address) {
        Verdict::Steer(steer) => {
            let offline = if kernel.value.is_some_and(|value| value.is_offline()) {
                " (its node was offline, but no redirector vouches for that any more)"
            } else {
                ""
            };
            format!("steered to {}{offline}", steer.to.socket_addr())
        }
        Verdict::Pass(Pass::Unconfigured) => "passes: no directory has been installed yet".to_owned(),
        Verdict::Pass(Pass::Exempt) => "passes: sockets without a mark are exempt".to_owned(),
        Verdict::Pass(Pass::Intercept) => "passes: this is the proxy's intercept listener".to_owned(),
        Verdict::Pass(Pass::Unmatched) => "passes: neither a VIP nor a port of an edge address".to_owned(),
        Verdict::Reject(Reject::Offline) => "refused with EHOSTUNREACH: its node is offline".to_owned(),
        Verdict::Reject(Reject::NoIntercept) => {
            "refused with EHOSTUNREACH: this host has no intercept address of this family (--node-ip)".to_owned()
        }
    }
}

fn by_directory(directory: &Directory, address: SocketAddr) -> String {
    let ip = address.ip();
    if directory.ranges.contains(ip) {
        return match directory.node_of_vip(ip) {
            Some(node) => format!("VIP of {node}; every port"),
            None => "in the range of VIPs, but no node's: the proxy refuses it".to_owned(),
        };
    }
    let owners: Vec<_> = directory.nodes_of_address(ip).map(|(name, _, _)| name.as_str()).collect();
    let owners = owners.join(", ");
    let Some((name, node, found)) = directory.nodes_of_address(ip).next() else {
        return "not an edge node's address".to_owned();
    };
    if !node.ports.contains(&address.port()) && found.routing != Routing::Protected {
        let ports: Vec<_> = node.ports.iter().map(u16::to_string).collect();
        return format!("address of {owners}, steered on ports {} only", ports.join(", "));
    }
    match found.routing {
        Routing::Routed => format!("address of {name}"),
        Routing::Shared => format!("address of several nodes ({owners}): the proxy refuses it; dial them by name"),
        Routing::Protected => format!("address of {name}, but never steered: {}", found.reason),
    }
}

async fn by_nftables(directory: &Directory, address: SocketAddr) -> String {
    match nft::read().await {
        Err(error) => error.to_string(),
        Ok(None) => "no table inet culvert".to_owned(),
        Ok(Some(parts)) => {
            let verdict = if parts.refuses(address.ip()) {
                "refused, for want of an intercept address of this family (--node-ip),"
            } else {
                "steered"
            };
            if directory.ranges.contains(address.ip()) {
                return format!("{verdict} by the set of VIPs");
            }
            match nft::contains(address).await {
                Ok(true) => format!("{verdict} by the set of edge addresses"),
                Ok(false) => "passes: not in the set of edge addresses".to_owned(),
                Err(error) => error.to_string(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
