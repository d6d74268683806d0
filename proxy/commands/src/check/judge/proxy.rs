//! The proxy, its intercept ports, its tunnels and what limits them.

use culvert_api::installed::Installed;
use std::collections::BTreeMap;

use culvert_api::agent_config::MAX_PROXIES;
use culvert_api::ports::RESERVED;
use culvert_api::proto::control::NodeStatus;
use culvert_daemon::counted;
use culvert_proxy_cluster::MAX_LISTED;
use culvert_proxy_core::reported::LONG_WAIT;

use super::{daemon, named};
use crate::check::facts::{Daemon, Dialled, Facts, LIMITS};
use crate::check::finding::{Judged, failure, ok, warning};

pub(super) fn proxy(facts: &Facts) -> Option<Judged> {
    match &facts.nodes {
        Err(problem) => Some(failure(
            problem,
            "start culvert-proxy on this host, and run the check as root there",
        )),
        Ok(_) => Some(match &facts.proxy {
            Ok(Daemon { missing, remarks }) if missing.is_empty() && !remarks.is_empty() => {
                warning(
                    format!("culvert-proxy is ready, but {}", remarks.join("; ")),
                    "its log says more: culvert-proxy",
                )
            }
            proxy => daemon(
                proxy,
                "culvert-proxy",
                "culvert-proxy --admin-listen IP:PORT check",
            ),
        }),
    }
}

/// Whether the proxy listens where the redirector steers to.
pub(super) fn intercept(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed_if(Installed::steers)?;
    let mut deaf = Vec::new();
    for port in &installed.intercept_ports {
        if !facts.listening.contains(port) {
            deaf.push(port.to_string());
        }
    }
    Some(if deaf.is_empty() {
        ok("every intercept port has a listener")
    } else {
        failure(
            format!(
                "connections are steered to port {}, which has no listener",
                deaf.join(", ")
            ),
            "start the proxy, or make its --intercept-listen and the redirector's \
             --intercept-port equal",
        )
    })
}

/// Whether connections of other programs may take Culvert's ports.
pub(super) fn local_ports(facts: &Facts) -> Option<Judged> {
    let ports = facts.local_ports.unreserved();
    if ports.is_empty() {
        return Some(ok("connections of other programs get none of our ports"));
    }
    let shown: Vec<String> = ports.iter().map(u16::to_string).collect();
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    Some(warning(
        format!(
            "a connection of another program may get {} as its own port, since \
             net.ipv4.ip_local_port_range includes them: a proxy or redirector that starts then \
             cannot listen there",
            named(&shown)
        ),
        format!(
            "reserve them on this host: sysctl -w \
             net.ipv4.ip_local_reserved_ports={RESERVED}, with those that are reserved already; \
             for good in /etc/sysctl.d, as deploy/sysctl.d/culvert-ports.conf has it"
        ),
    ))
}

/// A connection of this process to a VIP.
pub(super) fn dial(facts: &Facts) -> Option<Judged> {
    let Dialled { node, vip, way } = facts.dial.as_ref()?;
    let installed = facts.installed.as_ref().ok()?;
    let hooked = installed.has_hooks() && installed.is_attached();
    Some(match way.as_deref() {
        Ok("nftables") if hooked => warning(
            format!(
                "a connection of this process to {vip} ({node}) came by nftables, past the \
                 connect hooks"
            ),
            "--cgroup of the redirector leaves this process out: take the cgroup2 root, if all \
             are meant",
        ),
        Ok("ebpf") => ok(format!(
            "a connection of this host to {vip} ({node}) came by the connect hooks"
        )),
        Ok(way) => ok(format!(
            "a connection of this host to {vip} ({node}) came by {way}"
        )),
        Err(problem) => failure(
            format!(
                "a connection of this host to {vip} ({node}) did not come to the proxy: {problem}"
            ),
            format!("culvert-redirector explain {vip}"),
        ),
    })
}

/// Nodes whose agents say that large packets are lost on their way here.
fn lossy(nodes: &[NodeStatus]) -> Option<Judged> {
    let mut names = Vec::new();
    for node in nodes {
        if node.large_packets_lost {
            names.push(node.name.as_str());
        }
    }
    if names.is_empty() {
        return None;
    }
    Some(warning(
        format!(
            "all nodes have tunnels, and large packets of {} are lost on the way: a larger answer \
             ends the tunnel",
            named(&names)
        ),
        "give these agents --tunnel-mss, such as 1200",
    ))
}

pub(super) fn tunnels(facts: &Facts) -> Option<Judged> {
    let nodes = facts.nodes.as_ref().ok()?;
    let mut offline = Vec::new();
    for node in nodes {
        if node.tunnels == 0 && node.elsewhere.is_empty() {
            offline.push(node.name.as_str());
        }
    }
    if offline.is_empty()
        && let Some(lossy) = lossy(nodes)
    {
        return Some(lossy);
    }
    Some(match offline.first() {
        None if nodes.is_empty() => warning(
            "there are no nodes",
            "culvert token create NODE; in a cluster: kubectl label node NODE \
             node-restriction.kubernetes.io/culvert-edge=",
        ),
        None if nodes.len() == 1 => ok("the only node has tunnels"),
        None => ok(format!("all {} nodes have tunnels", nodes.len())),
        Some(node) if offline.len() == nodes.len() => failure(
            format!("no node has a tunnel: {}", named(&offline)),
            format!("culvert why {node}"),
        ),
        Some(node) => warning(
            format!(
                "{} of {} nodes offline: {}",
                offline.len(),
                nodes.len(),
                named(&offline)
            ),
            format!("culvert why {node}"),
        ),
    })
}

/// Agents that are not where their nodes are: a copied disk.
pub(super) fn agents(facts: &Facts) -> Option<Judged> {
    let nodes = facts.nodes.as_ref().ok()?;
    let mut texts = Vec::new();
    let mut fix = None;
    for node in nodes {
        if !node.misplaced.is_empty() {
            texts.push(format!("{}: {}", node.name, node.misplaced));
            fix.get_or_insert(&node.misplaced_fix);
        }
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Some(match fix {
        None => ok("every agent runs where its node is, and no two have one certificate"),
        Some(fix) => warning(named(&texts), fix),
    })
}

/// Lists of proxies that are full.
pub(super) fn caps(facts: &Facts) -> Option<Judged> {
    let proxies = facts.cluster.as_ref()?.as_ref().ok()?.proxies;
    let leases = facts.capped.get("leases").copied().unwrap_or(0);
    let agents = facts.capped.get("agent_config").copied().unwrap_or(0);
    Some(if leases > 0 {
        warning(
            format!(
                "the proxy knows only a part of the others: {leases} have Leases beyond the cap of \
                 {MAX_LISTED}"
            ),
            "run proxies on fewer cloud nodes: those that a proxy does not know reach none of its \
             edge nodes",
        )
    } else if agents > 0 || proxies >= MAX_PROXIES {
        warning(
            format!(
                "the list of proxies for agents is full: it names {proxies} and leaves out {agents}"
            ),
            "nothing is lost: agents learn of the others from those that are listed. One address \
             in front of all proxies makes the list short: --advertise",
        )
    } else {
        ok(format!(
            "the list of proxies for agents names {}",
            counted(proxies, "proxy", "proxies")
        ))
    })
}

/// What limits did to connections.
pub(super) fn limits(facts: &Facts) -> Option<Judged> {
    facts.proxy.as_ref().ok()?;
    let mut met = Vec::new();
    for (outcome, words) in LIMITS {
        if let Some(count) = facts.limited.get(outcome) {
            let connections = counted(*count, "connection", "connections");
            met.push(format!("{connections} {words} ({outcome})"));
        }
    }
    Some(if met.is_empty() {
        ok("no connection has met a limit of the proxy since it started")
    } else {
        warning(
            format!("since the proxy started: {}", met.join("; ")),
            "docs/metrics.md says whom each limit protects; the proxy's log names the clients",
        )
    })
}

/// Clients that wait for their backends.
pub(super) fn streams(facts: &Facts) -> Option<Judged> {
    let mut waiting: BTreeMap<String, u32> = BTreeMap::new();
    for stream in facts.idle_streams.as_ref().ok()? {
        if stream.waits {
            let backend = format!("{} ({})", stream.node, stream.destination);
            *waiting.entry(backend).or_default() += 1;
        }
    }
    if waiting.is_empty() {
        return Some(ok("no client waits long for its backend"));
    }
    let backends: Vec<&str> = waiting.keys().map(String::as_str).collect();
    Some(warning(
        format!(
            "{} without an answer for {} s or longer: {}",
            counted(waiting.values().sum::<u32>(), "connection", "connections"),
            LONG_WAIT.as_secs(),
            named(&backends)
        ),
        "`culvert streams --idle 30s` shows them; look at these backends on their nodes",
    ))
}
