//! `culvert-redirector explain`: what the kernel would do with a connection, and why. It works
//! without the daemon, from the pinned maps, nftables and the saved directory. This file reads
//! them; [`words`] explains them.

mod words;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use culvert_api::installed::Refusal;
use culvert_api::{Host, NotNamed, Query, Zone, dial_instead, node_named};
use culvert_daemon::AdminPages;
use culvert_redirector_common::names::{CONNECT4, CONNECT6, SOCKOPS};
use culvert_redirector_common::{
    Connect, DestinationValue, LOOPBACK, SocketReach, Verdict, decide,
};

use super::debug::failed;
use crate::config::SharedConfig;
use crate::directory::{Directory, Names, SavedDirectory};
use crate::mechanisms::bpf::{
    Hook, KernelConfig, Pins, Tables, now_ns, reach_of_host, refusal_of_this_kernel,
};
use crate::mechanisms::nft::{self, Listing, NftError};
use crate::mechanisms::vip_routes::Routes;
use crate::own_networks::OwnNetworks;
use crate::plan::Destination;
use ipnet::IpNet;
use serde::Serialize;
use words::{DirectoryEntry, HookDecision, NftDecision, NftSet, fix};

/// The port 0, which no client dials, stands for all ports of a VIP: they are steered alike.
const ANY_PORT: u16 = 0;

/// Where the explanation comes from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) bpffs: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) zone: Zone,
    pub(crate) steered_networks: Vec<IpNet>,
}

/// One address that a client would dial.
#[derive(Debug, Serialize)]
struct Explained {
    destination: String,
    lines: Vec<Line>,
}

/// A part of the explanation. Without any line `fix` the connection is steered.
#[derive(Debug, Serialize)]
struct Line {
    /// `directory`, `hooks`, `nftables` or `fix`.
    subject: &'static str,
    text: String,
}

impl Line {
    fn new(subject: &'static str, text: String) -> Self {
        Self { subject, text }
    }
}

/// Explains `asked`: an address or a node's name, with or without a port.
pub(crate) async fn explain(config: SharedConfig, asked: &str) -> Result<String> {
    let SharedConfig {
        bpffs,
        state_dir,
        zone,
        steered_networks,
    } = config;
    let sources = Sources {
        bpffs,
        state_dir,
        zone,
        steered_networks,
    };
    let mut out = String::new();
    for Explained { destination, lines } in sources.explain(asked).await? {
        writeln!(out, "{destination}")?;
        for Line { subject, text } in lines {
            writeln!(out, "  {subject:<10} {text}")?;
        }
    }
    Ok(out)
}

/// The page for the admin server.
pub(crate) fn route(sources: Sources) -> AdminPages {
    let content = "what the kernel does with a connection, and why";
    AdminPages::new()
        .page("/debug/explain/{destination}", content, get(debug_explain))
        .with_state(sources)
}

async fn debug_explain(
    State(sources): State<Sources>,
    Path(destination): Path<String>,
) -> Response {
    match sources.explain(&destination).await {
        Ok(explained) => Json(explained).into_response(),
        Err(error) => failed(error),
    }
}

impl Sources {
    async fn explain(&self, asked: &str) -> Result<Vec<Explained>> {
        let query: Query = asked.parse()?;
        let host = HostState::read(&Pins::new(&self.bpffs)).await?;
        // What the daemon steers in networks of this host, its flags name.
        let mut steered = self.steered_networks.clone();
        steered.extend(host.steered_edges()?.into_iter().map(IpNet::from));
        let own = OwnNetworks::read(&Routes::open()?, &steered).await;
        let own = own.context("read the networks of this host")?;
        let directory = SavedDirectory::new(&self.state_dir).load()?;
        let directory = directory.map(|directory| own.protect(directory));
        let mut explained = Vec::new();
        for ip in addresses(directory.as_ref(), &self.zone, &query.host)? {
            let dialled = Query {
                host: Host::Address(ip),
                port: query.port,
            };
            explained.push(Explained {
                destination: dialled.to_string(),
                lines: lines(directory.as_ref(), &host, &self.zone, ip, query.port)?,
            });
        }
        Ok(explained)
    }
}

/// The addresses that a client of `host` would dial.
fn addresses(directory: Option<&Directory>, zone: &Zone, host: &Host) -> Result<Vec<IpAddr>> {
    let name = match host {
        Host::Address(ip) => return Ok(vec![*ip]),
        Host::Name(name) => name,
    };
    let unknown =
        "in the saved directory is no node of this name; on the proxy's host: culvert nodes";
    let Some(directory) = directory else {
        bail!("{name}: {unknown}");
    };
    let names = Names { directory, zone };
    let node = match node_named(name, &names) {
        Ok(node) => node,
        Err(NotNamed::Unknown) => bail!("{name}: {unknown}"),
        Err(NotNamed::Means(node, meaning)) => bail!(
            "{name} {meaning}: it is not answered for node {node}; {}",
            dial_instead(&node, &names)
        ),
    };
    if let Some(addresses) = directory.clouds.get(&node) {
        return Ok(addresses.clone());
    }
    let Some(node) = directory.nodes.get(&node) else {
        bail!("{name}: {unknown}");
    };
    Ok(node
        .vip4
        .map(IpAddr::V4)
        .into_iter()
        .chain(node.vip6.map(IpAddr::V6))
        .collect())
}

/// The explanation of one address. Without a port it covers each port that is steered on the
/// address.
fn lines(
    directory: Option<&Directory>,
    host: &HostState,
    zone: &Zone,
    ip: IpAddr,
    port: Option<u16>,
) -> Result<Vec<Line>> {
    let entry = DirectoryEntry::of(directory, ip, port);
    let mut hooks = Vec::new();
    let mut nftables = Vec::new();
    let mut fixes = Vec::new();
    for dialled in ports_to_explain(directory, ip, port) {
        let address = SocketAddr::new(ip, dialled);
        let by_hooks = host.by_hooks(address)?;
        let by_nftables = host.by_nftables(address);
        fixes.extend(fix(&entry, by_hooks, &by_nftables, (ip, port), zone));
        hooks.push((dialled, host.with_its_error(by_hooks)));
        nftables.push((dialled, by_nftables.to_string()));
    }
    fixes.dedup();
    let mut lines = vec![Line::new("directory", entry.to_string())];
    for text in grouped(hooks) {
        lines.push(Line::new("hooks", text));
    }
    for text in grouped(nftables) {
        lines.push(Line::new("nftables", text));
    }
    for text in fixes {
        lines.push(Line::new("fix", text));
    }
    Ok(lines)
}

fn ports_to_explain(directory: Option<&Directory>, ip: IpAddr, port: Option<u16>) -> Vec<u16> {
    let steered = directory
        .map(|directory| words::ports(directory, ip))
        .unwrap_or_default();
    match port {
        None if !steered.is_empty() => steered.into_iter().collect(),
        _ => vec![port.unwrap_or(ANY_PORT)],
    }
}

/// Joins ports with the same text into one line. If only one port is asked for, the line does not
/// name it.
fn grouped(texts: Vec<(u16, String)>) -> impl Iterator<Item = String> {
    let several = texts.len() > 1;
    let mut groups: Vec<(Vec<String>, String)> = Vec::new();
    for (port, text) in texts {
        match groups.iter_mut().find(|(_, other)| *other == text) {
            Some((ports, _)) => ports.push(port.to_string()),
            None => groups.push((vec![port.to_string()], text)),
        }
    }
    groups.into_iter().map(move |(ports, text)| {
        if several {
            format!("{text} ({})", ports.join(", "))
        } else {
            text
        }
    })
}

/// What is installed on this host.
struct HostState {
    tables: Option<Tables>,
    hooks: Vec<Hook>,
    refusal: Refusal,
    table: Result<Option<Listing>, NftError>,
}

impl HostState {
    async fn read(pins: &Pins) -> Result<Self> {
        let tables = if pins.any_map() {
            Some(Tables::open(pins)?)
        } else {
            None
        };
        let refusal = refusal_of_this_kernel().unwrap_or(Refusal::HostUnreachable);
        Ok(Self {
            tables,
            hooks: Hook::read_steering(pins)?,
            refusal,
            table: nft::read_all().await,
        })
    }

    /// The edge addresses that hooks or nftables have.
    fn steered_edges(&self) -> Result<BTreeSet<IpAddr>> {
        let mut steered = BTreeSet::new();
        if let Some(tables) = &self.tables {
            for destination in tables.destinations()?.into_keys() {
                if let Destination::Edge(address) = destination {
                    steered.insert(address.ip());
                }
            }
        }
        if let Ok(Some(table)) = &self.table {
            steered.extend(table.elements.edge_addresses());
        }
        Ok(steered)
    }

    fn by_hooks(&self, address: SocketAddr) -> Result<HookDecision> {
        let Some(tables) = &self.tables else {
            return Ok(HookDecision::Absent);
        };
        if attachment(&self.hooks, address) == Attachment::Detached {
            return Ok(HookDecision::Detached);
        }
        Ok(KernelView::read(tables, address)?.decides(address))
    }

    /// The text of a decision, with the error code of this kernel.
    fn with_its_error(&self, decision: HookDecision) -> String {
        decision
            .to_string()
            .replace(Refusal::HostUnreachable.label(), self.refusal.label())
    }

    fn by_nftables(&self, address: SocketAddr) -> NftDecision {
        match &self.table {
            Err(error) => NftDecision::Unknown(error.to_string()),
            Ok(None) => NftDecision::NoTable,
            Ok(Some(table)) => {
                let set = if table.elements.has_vip(address.ip()) {
                    NftSet::Vips
                } else if table.elements.has_edge(address) {
                    NftSet::Edges
                } else {
                    return NftDecision::Passes;
                };
                if table.parts.refuses(address.ip()) {
                    NftDecision::Refuses(set)
                } else {
                    NftDecision::Steers(set)
                }
            }
        }
    }
}

/// The map entries and the time that the kernel programs would see.
struct KernelView {
    config: KernelConfig,
    value: Option<DestinationValue>,
    reach: SocketReach,
    now_ns: u64,
}

impl KernelView {
    fn read(tables: &Tables, address: SocketAddr) -> Result<Self> {
        let config = tables.config()?;
        let vip = config.vip4.contains(&address.ip().into())
            || config.vip6.contains(&address.ip().into());
        let destination = if vip {
            Destination::Vip(address.ip())
        } else {
            Destination::Edge(address)
        };
        Ok(Self {
            config,
            value: tables.destination(&destination.key())?,
            reach: reach_of_host(),
            now_ns: now_ns()?,
        })
    }

    /// Calls the same function as the kernel programs.
    fn decides(&self, address: SocketAddr) -> HookDecision {
        let connect = Connect {
            dst: address.into(),
            mark: 0,
            reach: self.reach,
            has_source_port: false,
        };
        match decide(&self.config, &connect, |_key| self.value, || self.now_ns) {
            Verdict::Steer(steer) if self.value.is_some_and(|value| value.is_offline()) => {
                HookDecision::Lapsed(steer.to.socket_addr())
            }
            Verdict::Steer(steer)
                if address.port() == ANY_PORT && LOOPBACK.contains(&steer.to.addr) =>
            {
                HookDecision::SteersEachPort
            }
            verdict @ (Verdict::Steer(_) | Verdict::Pass(_) | Verdict::Reject(_)) => {
                HookDecision::Decides(verdict)
            }
        }
    }
}

/// Whether our programs run for connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attachment {
    Attached,
    Detached,
}

/// The attachment of the hook of the address' own family. An IPv6 socket that dials an IPv4-mapped
/// address passes the other hook.
fn attachment(hooks: &[Hook], address: SocketAddr) -> Attachment {
    let program = if address.is_ipv4() {
        CONNECT4
    } else {
        CONNECT6
    };
    let detached = hooks
        .iter()
        .any(|hook| [program, SOCKOPS].contains(&hook.program) && !hook.is_attached());
    if detached {
        Attachment::Detached
    } else {
        Attachment::Attached
    }
}

#[cfg(test)]
mod tests;
