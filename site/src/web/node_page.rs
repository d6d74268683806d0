//! The page of one node.

use maud::{Markup, html};

use super::format::{class, round_trip};
use super::layout::{Frame, Page, page};
use super::sparkline::sparkline;
use super::tables::{commands, failures, streams};
use crate::event::Event;
use crate::history::History;
use crate::host_path::{Hop, HostPath};
use crate::node::{Node, NodeAddress};
use crate::site::Site;
use crate::stream::Stream;
use crate::tunnel_at::TunnelAt;
use crate::units::span;
use crate::verdict;

/// Connections and failures that are shown.
const MAX_ROWS: usize = 50;

/// Makes the page: what all hosts say of a way to the node is asked for it.
pub(super) fn node_page(
    site: &Site,
    history: &History,
    node: &Node,
    ways: &[HostPath],
    frame: &Frame,
) -> String {
    let about = Page {
        frame,
        root: "../",
        title: &format!("{} – Culvert", node.node),
        verdict: verdict::of_node(node),
        state: if node.online { "online" } else { "offline" },
        at: site.seconds,
    };
    let tunnels = site.tunnels_of(&node.node);
    let own_streams = streams_of(site, node);
    let own_failures = failures_of(site, node);
    let content = html! {
        nav .path { a href="../" { "All nodes" } " / " (node.node) }
        h1 { (node.node) }
        div .columns.even {
            section .card { h2 { "The node" } (facts(node, history)) }
            section .card {
                h2 { "Hop by hop" }
                @match frame.left_out {
                    Some(text) => p .none { (commands(text)) },
                    None => (way_list(ways)),
                }
            }
        }
        section .card {
            h2 { "Tunnels" }
            @if tunnels.is_empty() {
                p .none { "no proxy that answers has a tunnel of it" }
            } @else { (tunnel_table(tunnels)) }
        }
        section .card {
            h2 { "Connections under way" }
            @if own_streams.is_empty() { p .none { "none" } } @else {
                (streams(&own_streams, history, "../"))
            }
        }
        section .card {
            h2 { "Last failures" }
            (failures(&own_failures, frame, "../"))
        }
    };
    page(&about, &content)
}

fn streams_of<'a>(site: &'a Site, node: &Node) -> Vec<&'a Stream> {
    let mut own = Vec::new();
    for stream in &site.streams {
        if stream.node == node.node && own.len() < MAX_ROWS {
            own.push(stream);
        }
    }
    own
}

fn failures_of<'a>(site: &'a Site, node: &Node) -> Vec<&'a Event> {
    let mut own = Vec::new();
    for event in &site.failures {
        if event.is_of_node(&node.node) && own.len() < MAX_ROWS {
            own.push(event);
        }
    }
    own
}

fn facts(node: &Node, history: &History) -> Markup {
    html! {
        dl {
            dt { "round trip" }
            dd .trend {
                @if let Some(samples) = history.round_trips(&node.node) { (sparkline(samples)) }
                span { (round_trip(node.round_trip_ms)) }
            }
            dt { "addresses" }
            dd { @for own in &node.addresses { (address(own)) } }
            dt { "VIPs" }
            dd { (node.vip4) @if !node.vip6.is_empty() { ", " (node.vip6) } }
            dt { "ports" }
            dd { (listed(&node.ports)) }
            @if !node.forbidden_ports.is_empty() {
                dt { "forbidden" }
                dd .warning { (listed(&node.forbidden_ports)) ": its agent would not dial them" }
            }
            @if !node.misplaced.is_empty() {
                dt { "agents" }
                dd .warning { (node.misplaced) p .fix { (commands(&node.fix)) } }
            }
            dt { "versions" }
            dd { (node.versions.join(", ")) }
            dt { "proxies" }
            dd { (node.proxies.join(", ")) }
        }
    }
}

fn address(own: &NodeAddress) -> Markup {
    html! {
        div {
            (own.address)
            @if !own.problem.is_empty() { span .warning { ": " (own.problem) } }
        }
    }
}

fn listed(ports: &[u32]) -> String {
    let ports: Vec<String> = ports.iter().map(u32::to_string).collect();
    ports.join(", ")
}

fn way_list(ways: &[HostPath]) -> Markup {
    html! {
        @for way in ways {
            h3 {
                span .state.(if way.reachable { "ok" } else { "failure" }) {}
                "from " (way.host)
            }
            ul .hops { @for hop in &way.hops { (hop_line(hop)) } }
            @for fix in &way.fixes { p .fix { (commands(fix)) } }
        }
        p .none {
            "Nothing is dialled for this page. " code { "culvert why" }
            " with a port has the node's agent dial it."
        }
    }
}

fn hop_line(hop: &Hop) -> Markup {
    html! {
        li .(if hop.ok { "ok" } else { "failure" }) { strong { (hop.hop) } " " (hop.text) }
    }
}

fn tunnel_table(tunnels: &[TunnelAt]) -> Markup {
    html! {
        table {
            thead { tr {
                th { "proxy" } th .number { "tunnel" } th .number { "round trip" }
                th .number { "streams" } th .number { "up" } th .wide { "agent from" }
                th .wide { "version" }
            } }
            tbody {
                @for tunnel in tunnels {
                    tr {
                        td { span .state.(class(verdict::Verdict::Ok)) {} (tunnel.proxy) }
                        td .number { (tunnel.tunnel) }
                        td .number { (round_trip(tunnel.round_trip_ms)) }
                        td .number { (tunnel.streams) }
                        td .number { (span(tunnel.age_seconds)) }
                        td .wide { (tunnel.agent) }
                        td .wide { (tunnel.version) }
                    }
                }
            }
        }
    }
}
