//! The network namespaces of the nodes, and the internet between them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use culvert_lab::workspace;

use crate::node::{NAME, Node};

/// The addresses of all pods.
pub(crate) const ALL_PODS: &str = "10.244.0.0/16";

/// The folder of the names of network namespaces.
const NAMES: &str = "/run/netns";

/// The router between the sites.
const INTERNET: &str = "internet";

/// The first address of the services' range, which leads to the API server. A kube-proxy says the
/// same, but asks the API server by its own address for that.
const KUBERNETES_SERVICE: &str = "10.96.0.1";

/// The name of a node's network namespace.
pub(crate) fn name(node: Node) -> String {
    format!("{NAME}-{node}")
}

/// The file of a node's network namespace.
pub(crate) fn path(node: Node) -> PathBuf {
    Path::new(NAMES).join(name(node))
}

/// Makes all namespaces, links, addresses, routes and rules.
pub(crate) fn make(nodes: &[Node]) -> Result<()> {
    let internet = format!("{NAME}-{INTERNET}");
    ip(&["netns", "add", &internet])?;
    inside(&internet, &["ip", "link", "set", "lo", "up"])?;
    forward_packets(&internet)?;
    for node in nodes {
        make_node(*node, &internet)?;
    }
    // As in the real internet, packets to private addresses are dropped without an answer.
    for range in ["10.0.0.0/8", "192.168.0.0/16"] {
        inside(&internet, &["ip", "route", "add", "blackhole", range])?;
    }
    Ok(())
}

fn make_node(node: Node, internet: &str) -> Result<()> {
    let site = name(node);
    make_link(node, &site, internet)?;
    inside(&site, &["ip", "link", "set", "lo", "up"])?;
    forward_packets(&site)?;
    inside(&site, &["nft", &node_rules()])?;
    let pods = node.pods();
    if node.is_cloud() {
        let (own, _) = node.wan();
        let own = own.to_string();
        return inside(internet, &["ip", "route", "add", &pods, "via", &own]);
    }
    let own = format!("{}/32", node.address());
    inside(&site, &["ip", "address", "add", &own, "dev", "lo"])?;
    inside(&site, &["ip", "route", "add", "blackhole", ALL_PODS])?;
    inside(&site, &["nft", EDGE_RULES])
}

/// Makes the namespace `site` of a node, and its link to the internet.
fn make_link(node: Node, site: &str, internet: &str) -> Result<()> {
    let link = format!("site{}", node.number());
    let (own, router) = node.wan();
    ip(&["netns", "add", site])?;
    ip(&[
        "link", "add", "wan", "netns", site, "type", "veth", "peer", "name", &link, "netns",
        internet,
    ])?;
    inside(
        internet,
        &[
            "ip",
            "address",
            "add",
            &format!("{router}/30"),
            "dev",
            &link,
        ],
    )?;
    inside(internet, &["ip", "link", "set", &link, "up"])?;
    inside(
        site,
        &["ip", "address", "add", &format!("{own}/30"), "dev", "wan"],
    )?;
    inside(site, &["ip", "link", "set", "wan", "up"])?;
    inside(
        site,
        &["ip", "route", "add", "default", "via", &router.to_string()],
    )
}

/// Pods leave their node with its address, unless for another pod, and reach the API server by its
/// service.
fn node_rules() -> String {
    let master = Node::Master.address();
    format!(
        "table ip cluster {{
            chain pre {{ type nat hook prerouting priority dstnat; ip daddr {KUBERNETES_SERVICE} tcp dport 443 dnat to {master}:6443; }}
            chain out {{ type nat hook output priority -100; ip daddr {KUBERNETES_SERVICE} tcp dport 443 dnat to {master}:6443; }}
            chain post {{ type nat hook postrouting priority srcnat; ip saddr {{ 10.0.0.0/8, 192.168.0.0/16 }} ip daddr != {ALL_PODS} oifname \"wan\" masquerade; }}
        }}"
    )
}

/// Nothing new comes in from the internet.
const EDGE_RULES: &str = "table ip site {
    chain inward { type filter hook input priority filter; iifname \"wan\" ct state new drop; }
    chain through { type filter hook forward priority filter; iifname \"wan\" ct state new drop; }
}";

/// Removes all namespaces of the cluster, and with them everything in them.
pub(crate) fn remove() -> Result<()> {
    let Ok(entries) = std::fs::read_dir(NAMES) else {
        return Ok(());
    };
    for entry in entries {
        let file = entry.context("list network namespaces")?.file_name();
        let name = file.to_string_lossy();
        if name.starts_with(&format!("{NAME}-")) {
            ip(&["netns", "delete", &name])?;
        }
    }
    Ok(())
}

fn forward_packets(netns: &str) -> Result<()> {
    inside(netns, &["sysctl", "-qw", "net.ipv4.ip_forward=1"])
}

fn inside(netns: &str, line: &[&str]) -> Result<()> {
    ip(&[&["netns", "exec", netns], line].concat())
}

fn ip(args: &[&str]) -> Result<()> {
    workspace::output(Command::new("ip").args(args)).map(drop)
}
