//! The text of an explanation, in the order in which a connection meets what it is about. Pure.

mod behind;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use culvert_api::{Forbidden, NodeName, Routing};
use culvert_daemon::{chain, counted};
use culvert_proxy_core::directory::{AddressView, NodeView, ResolveError, Target};
use culvert_proxy_core::reported::LONG_WAIT;
use culvert_proxy_streams::direct::DirectTarget;
use culvert_proxy_streams::error::RouteError;
use culvert_tunnel::dial_reason;
use culvert_tunnel::proto::tunnel::{DialCode, TunnelEnd};

use super::{Accepted, DialError, Facts, PeerFacts, ReportedRules, TunnelFacts, reported_rules};

/// What operators read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    /// Whether a connection comes through, as far as is known.
    pub(crate) reachable: bool,
    /// Whether it is a name, and no node has it.
    pub(crate) no_node: bool,
}

/// A line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) subject: &'static str,
    pub(crate) text: String,
    /// Whether this is what a connection does not get past.
    pub(crate) broken: bool,
}

/// Collects lines, and what to do where something is in the way.
#[derive(Default)]
struct Page {
    lines: Vec<Line>,
    fixes: Vec<String>,
    blocked: bool,
}

impl Page {
    fn line(&mut self, subject: &'static str, text: impl Into<String>) {
        self.lines.push(Line {
            subject,
            text: text.into(),
            broken: false,
        });
    }

    /// A line that says where a connection ends.
    fn broken(&mut self, subject: &'static str, text: impl Into<String>) {
        self.blocked = true;
        self.lines.push(Line {
            subject,
            text: text.into(),
            broken: true,
        });
    }

    /// Nothing comes through. Unless another line says where it ends, the last one does.
    fn block(&mut self) {
        self.blocked = true;
        let is_said = self.lines.iter().any(|line| line.broken);
        if let Some(last) = self.lines.last_mut()
            && !is_said
        {
            last.broken = true;
        }
    }

    /// Nothing comes through, except for this.
    fn fix(&mut self, text: impl Into<String>) {
        self.block();
        self.fixes.push(text.into());
    }
}

pub(super) fn explanation(facts: &Facts) -> Explanation {
    let mut page = Page::default();
    match &facts.target {
        Ok(target) => routed(&mut page, facts, target),
        Err(error) => match &facts.direct {
            Some(target) => direct(&mut page, facts, target),
            None => unrouted(&mut page, facts, error),
        },
    }
    for fix in std::mem::take(&mut page.fixes) {
        page.line("fix", fix);
    }
    Explanation {
        title: facts.query.to_string(),
        lines: page.lines,
        reachable: !page.blocked,
        no_node: facts.direct.is_none() && is_unknown_name(&facts.target),
    }
}

fn is_unknown_name(target: &Result<Target, ResolveError>) -> bool {
    matches!(
        target,
        Err(ResolveError::UnknownName { .. } | ResolveError::OtherMeaning { .. })
    )
}

/// Explains a destination that leads to no node.
fn unrouted(page: &mut Page, facts: &Facts, error: &ResolveError) {
    match error {
        ResolveError::UnknownAddress { address, .. } => unknown_address(page, *address),
        ResolveError::UnknownName { .. } => {
            page.line("directory", error.to_string());
            page.line(
                "dns",
                format!("NXDOMAIN inside {}, REFUSED outside it", facts.zone),
            );
            page.fix("`culvert nodes` has all names");
        }
        ResolveError::OtherMeaning { advice, .. } => {
            page.line("directory", error.to_string());
            page.line("dns", "REFUSED: the client asks its other servers");
            page.fix(advice.clone());
        }
        ResolveError::UnassignedVip { .. } => {
            page.line(
                "directory",
                "in the range of VIPs, but no node's: the proxy refuses it",
            );
            page.line("steering", "steered on every port");
            page.fix(
                "look the node's name up again: VIPs of removed nodes are not given to \
                others for a day",
            );
        }
        ResolveError::Shared { address, .. } => {
            let text = format!(
                "address of several nodes ({}): the proxy refuses it; dial them by name",
                owner_names(facts)
            );
            page.line("directory", text);
            page.line("steering", by_ports(facts, *address));
            page.fix(format!("dial {}", full_names(facts)));
        }
        ResolveError::Contested { address, .. } => {
            page.line("directory", format!("the proxy refuses it: {error}"));
            page.line("steering", by_ports(facts, *address));
            page.fix(format!(
                "dial {}, or remove the address from the node that should not have it",
                full_names(facts)
            ));
        }
        ResolveError::Behind { routing, .. } => behind::refused_behind(page, error, *routing),
        ResolveError::Protected { .. } => {
            let owners = owner_names(facts);
            page.line(
                "directory",
                format!("address of {owners}, but never steered: {error}"),
            );
            page.line("steering", "passes: the client dials it itself");
            page.fix(format!("dial {}", full_names(facts)));
        }
    }
    for owner in &facts.owners {
        page.line("node", node(owner));
    }
}

fn unknown_address(page: &mut Page, address: IpAddr) {
    page.line("directory", "not an edge node's address");
    page.line("steering", "passes: the client dials it itself");
    page.fix(format!(
        "if a node has it: `culvert token create NODE --address {address}`; in a cluster its \
         Node says it"
    ));
}

fn owner_names(facts: &Facts) -> String {
    let owners = facts.owners.iter();
    let names: Vec<&str> = owners.map(|owner| owner.name.as_str()).collect();
    names.join(", ")
}

/// The names in DNS by which clients can dial the owners.
fn full_names(facts: &Facts) -> String {
    let owners = facts.owners.iter();
    let names: Vec<String> = owners
        .map(|owner| facts.zone.full_name(&owner.name))
        .collect();
    names.join(" or ")
}

/// Explains a destination that needs no tunnel.
fn direct(page: &mut Page, facts: &Facts, target: &DirectTarget) {
    page.line(
        "directory",
        format!("not an edge node's address or name; {}", target.reason),
    );
    page.line("steering", "passes: the client dials it itself");
    page.line(
        "connect",
        format!("direct: dialled from the proxy itself, {}", target.address),
    );
    match &facts.dial {
        Some(Ok(accepted)) => page.line("dial", format!("ok: {accepted}")),
        Some(Err(error)) => {
            page.broken("dial", format!("{}: {}", dial_outcome(error), chain(error)));
            page.fix(format!(
                "from the proxy's host: `curl -v telnet://{}` must connect",
                target.address
            ));
        }
        None => {}
    }
}

/// Explains a destination that leads to a node.
fn routed(page: &mut Page, facts: &Facts, target: &Target) {
    let Some(owner) = facts.owners.first() else {
        page.fix(format!("{} was removed just now: ask again", target.node));
        return;
    };
    directory(page, facts, owner);
    page.line("node", node(owner));
    page.line("dns", dns_text(facts, owner));
    tunnels(page, facts, &owner.name);
    if let Some(misplaced) = &facts.misplaced {
        page.line("agents", misplaced.to_string());
        page.fixes.push(misplaced.fix(&owner.name));
    }
    if let Some(tunnel) = facts.tunnels.first() {
        agent(page, facts, target, tunnel);
    }
    if let Some(dial) = &facts.dial {
        dial_lines(page, dial, target, &facts.waits);
    }
    waits(page, &facts.waits, target);
}

fn dns_text(facts: &Facts, owner: &NodeView) -> String {
    let names = match facts.names.as_slice() {
        [] => "no name that DNS answers; its VIPs".to_owned(),
        names => names.join(" and "),
    };
    format!(
        "{names}: A {}, AAAA {} where the redirector has an IPv6 --node-ip",
        owner.vip4, owner.vip6
    )
}

/// A backend that accepts and never answers accepts a test connection too.
fn waits(page: &mut Page, waits: &[Duration], target: &Target) {
    let Some(longest) = waits.first() else {
        return;
    };
    page.line(
        "streams",
        format!(
            "{} to it have sent and have no answer, for up to {}",
            waits.len(),
            span(*longest)
        ),
    );
    if *longest >= LONG_WAIT {
        // It may also be a long answer that is not due yet.
        page.fixes.push(format!(
            "does the backend accept connections and answer none? Ask it on {} itself; \
             `culvert streams {0}` shows who waits",
            target.node
        ));
    }
}

fn directory(page: &mut Page, facts: &Facts, owner: &NodeView) {
    let offline = if facts.is_offline() {
        ", and refused with EHOSTUNREACH while the node is offline"
    } else {
        ""
    };
    let name = &owner.name;
    match facts.address() {
        None => {
            page.line(
                "directory",
                format!("name of {name}; every port of its VIPs"),
            );
            page.line("steering", format!("steered{offline}"));
        }
        Some(address) if address == IpAddr::V4(owner.vip4) || address == IpAddr::V6(owner.vip6) => {
            page.line("directory", format!("VIP of {name}; every port"));
            page.line("steering", format!("steered{offline}"));
        }
        Some(address) if behind::leads(owner, address, facts.query.port) => {
            page.line("directory", format!("behind {name}"));
            page.line("steering", format!("steered{offline}"));
        }
        Some(address) => {
            page.line("directory", format!("address of {name}"));
            page.line("steering", format!("{}{offline}", by_ports(facts, address)));
            if let Some(port) = facts.query.port
                && !owner.ports.contains(&port)
            {
                page.fix(format!(
                    "dial {}:{port}, or have the port steered: `culvert token create \
                     {name} --port {}`; in a cluster: \
                     ConfigMap culvert-ports",
                    facts.zone.full_name(name),
                    listed(owner.ports.iter().chain([&port]), ",")
                ));
            }
        }
    }
}

/// What a redirector does with an address that nodes have.
fn by_ports(facts: &Facts, address: IpAddr) -> String {
    let mut ports = BTreeSet::new();
    for owner in &facts.owners {
        if owner.addresses.iter().any(|view| view.ip == address) {
            ports.extend(owner.ports.iter().copied());
        }
    }
    match facts.query.port {
        Some(port) if ports.contains(&port) => "steered".to_owned(),
        Some(_) => format!("passes: steered on ports {} only", listed(&ports, ", ")),
        None => format!("steered on ports {}", listed(&ports, ", ")),
    }
}

fn node(owner: &NodeView) -> String {
    let mut addresses = "no addresses".to_owned();
    if !owner.addresses.is_empty() {
        let texts: Vec<String> = owner.addresses.iter().map(address_text).collect();
        addresses = texts.join(", ");
    }
    format!(
        "{}: {addresses}; VIPs {}, {}; ports {}{}",
        owner.name,
        owner.vip4,
        owner.vip6,
        listed(&owner.ports, ", "),
        behind::listed(owner)
    )
}

fn address_text(view: &AddressView) -> String {
    match view.routing {
        Routing::Routed => view.ip.to_string(),
        Routing::Shared => format!("{} (shared)", view.ip),
        Routing::Protected => format!("{} (protected)", view.ip),
    }
}

/// What the agent knows of the tunnels before these. Only it sees what became of its own packets.
fn last_ends(page: &mut Page, tunnels: &[TunnelFacts], name: &NodeName) {
    let mut ends = BTreeSet::new();
    for tunnel in tunnels {
        ends.insert(tunnel.described.last_end());
    }
    for end in ends {
        let why = match end {
            TunnelEnd::Unspecified => continue,
            TunnelEnd::LargePacketsLost => {
                "small packets of the agent arrived, and not one large one: something on the way \
                 loses packets below the MTU of its route"
            }
            TunnelEnd::Unacknowledged => "nothing that it sent was acknowledged",
            TunnelEnd::Silent => "nothing came from the proxy",
        };
        page.line("ended", format!("the agent says of a tunnel before: {why}"));
        if end == TunnelEnd::LargePacketsLost {
            page.fixes.push(large_packets_fix(name));
        }
    }
}

/// For a node whose agent's large packets are lost.
fn large_packets_fix(name: &NodeName) -> String {
    format!(
        "give the agent of {name} --tunnel-mss, such as 1200, or set net.ipv4.tcp_mtu_probing=1 \
         there"
    )
}

fn tunnels(page: &mut Page, facts: &Facts, name: &NodeName) {
    for tunnel in &facts.tunnels {
        page.line("tunnel", tunnel_text(tunnel));
    }
    for peer in &facts.peers {
        peer_line(page, peer, name);
    }
    let past = &facts.past;
    let ended = match &past.ended {
        Some(event) => format!("the last tunnel ended at {}: {}", event.at, event.reason),
        None => format!(
            "no tunnel has ended since the proxy started at {}",
            facts.started
        ),
    };
    if !facts.is_offline() {
        page.line("ended", ended);
        last_ends(page, &facts.tunnels, name);
        return;
    }
    page.broken("tunnel", format!("none: {name} is offline"));
    page.line("ended", ended);
    if let Some(refused) = &past.refused
        && past
            .ended
            .as_ref()
            .is_none_or(|ended| refused.at >= ended.at)
    {
        let reason = &refused.reason;
        page.line(
            "refused",
            format!("its agent was not taken at {}: {reason}", refused.at),
        );
        page.fix(format!("on {name}: fix what the line above says"));
        return;
    }
    page.fix(format!(
        "on {name}: is culvert-agent running? `curl http://127.0.0.1:7429/readyz` says why it has \
         no tunnel"
    ));
}

fn peer_line(page: &mut Page, peer: &PeerFacts, name: &NodeName) {
    let PeerFacts {
        host,
        links,
        round_trip,
        streams,
    } = peer;
    if *links > 0 {
        let away = match round_trip {
            Some(time) => format!(", {time:.1?} away"),
            None => String::new(),
        };
        page.line(
            "tunnel",
            format!(
                "of {name} at proxy {host}{away}, {} on the link to it",
                counted(*streams, "stream", "streams")
            ),
        );
    } else {
        page.line(
            "tunnel",
            format!("of {name} at proxy {host}, which this proxy does not reach"),
        );
        page.fix(format!(
            "open TCP port 7401 from this host to proxy {host}; the log of this proxy says why it \
             has no link"
        ));
    }
}

fn tunnel_text(tunnel: &TunnelFacts) -> String {
    let round_trip = match tunnel.round_trip {
        Some(time) => format!("{} ms", milliseconds(time)),
        None => "not measured yet".to_owned(),
    };
    let silent = if tunnel.silent {
        "; silent, perhaps dead"
    } else {
        ""
    };
    format!(
        "up for {}, round trip {round_trip}, streams {}, agent {} from {}{silent}",
        span(tunnel.up),
        tunnel.streams,
        tunnel.described.version,
        tunnel.agent
    )
}

fn agent(page: &mut Page, facts: &Facts, target: &Target, tunnel: &TunnelFacts) {
    let Some(rules) = ReportedRules::of(&tunnel.described) else {
        return page.line("agent", "it does not report what it allows".to_owned());
    };
    if facts.query.port.is_none() {
        return page.line("agent", rules.to_string());
    }
    match rules.decide(target) {
        Ok(candidates) => {
            let mut text = format!("dials {}", candidates.first);
            for then in candidates.then {
                text += &format!(", then {then}");
            }
            page.line("agent", text);
        }
        Err(forbidden) => {
            let refused = forbidden.target();
            page.line("agent", format!("refuses to dial {refused}: {rules}"));
            // Where an agent is not where its node is, its allow-list is not what to change.
            if facts.misplaced.is_some() && matches!(forbidden, Forbidden::OtherAddress(_)) {
                page.block();
            } else {
                page.fix(reported_rules::fix(forbidden, &target.node));
            }
        }
    }
}

fn dial_lines(
    page: &mut Page,
    dial: &Result<Accepted, DialError>,
    target: &Target,
    waits: &[Duration],
) {
    let error = match dial {
        Ok(accepted) => {
            let outcome = match waits.first() {
                Some(longest) if *longest >= LONG_WAIT => "accepted, but see streams",
                _ => "ok",
            };
            return page.line("dial", format!("{outcome}: {accepted}"));
        }
        Err(error) => error,
    };
    page.broken("dial", format!("{}: {}", dial_outcome(error), chain(error)));
    let node = &target.node;
    let port = target.port;
    match error {
        DialError::Route(RouteError::Dial { failure, .. }) => match failure.code {
            DialCode::Refused => page.fix(format!(
                "on {node}: `ss -ltn sport = :{port}` shows \
                what listens there"
            )),
            DialCode::TimedOut | DialCode::Unreachable => page.fix(format!(
                "on {node}: a firewall, or a full accept queue (`ss -ltn sport = :{port}`, Recv-Q \
                 above Send-Q)"
            )),
            // Said with its fix in the agent's line, or in its own message.
            DialCode::Forbidden
            | DialCode::TooManyStreams
            | DialCode::Invalid
            | DialCode::Failed
            | DialCode::Offline
            | DialCode::Ok
            | DialCode::Unspecified => page.block(),
        },
        DialError::Route(RouteError::Tunnel { .. }) | DialError::TimedOut => {
            page.fix(format!(
                "the network between {node} and its proxy is cut or very slow; its agent \
                dials again by itself"
            ));
        }
        DialError::Route(RouteError::TooManyStreams { .. }) => {
            page.fix("`curl http://127.0.0.1:7409/debug/streams` shows them: end some");
        }
        DialError::Route(
            RouteError::Offline { .. }
            | RouteError::Resolve(_)
            | RouteError::Direct { .. }
            | RouteError::ShareTaken { .. },
        ) => {
            page.block();
        }
    }
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = milliseconds(self.time);
        write!(f, "the backend took it in {time} ms")?;
        match &self.tried {
            Some(tried) => write!(f, ", after {tried}"),
            None => Ok(()),
        }
    }
}

fn dial_outcome(error: &DialError) -> &'static str {
    match error {
        DialError::Route(error) => error.reason(),
        DialError::TimedOut => dial_reason(DialCode::TimedOut),
    }
}

fn listed<'a>(ports: impl IntoIterator<Item = &'a u16>, separator: &str) -> String {
    let texts: Vec<_> = ports.into_iter().map(u16::to_string).collect();
    texts.join(separator)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
