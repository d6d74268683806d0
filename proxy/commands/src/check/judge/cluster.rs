//! Nodes and their claims, certificates, the clock, and what the proxy may do in the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use culvert_proxy_cluster::PortsFacts;
use culvert_proxy_core::clock::UnixTime;

use super::named;
use crate::check::facts::Facts;
use crate::check::finding::{Judged, failure, ok, warning};

/// Certificates that end sooner were not renewed when they should have been.
const EXPIRY_WARNING: Duration = Duration::from_secs(6 * 3600);
/// An authority has to be replaced by people, who need time.
const AUTHORITY_EXPIRY_WARNING: Duration = Duration::from_secs(30 * 24 * 3600);
/// Certificates begin a few minutes before they are made.
const SKEW_WARNING: Duration = Duration::from_secs(10);
const SKEW_FAILURE: Duration = Duration::from_secs(120);
/// What the directory reports about addresses in a cluster whose own ranges it does not know.
const RANGES_UNKNOWN: &str = "ranges of Services and pods are unknown";

/// Nodes that another tunnel's label makes edge nodes, and ours does not.
pub(super) fn edge_label(facts: &Facts) -> Option<Judged> {
    let labelled = &facts.cluster.as_ref()?.as_ref().ok()?.other_labels;
    let nodes = facts.nodes.as_ref().ok()?;
    let mut not_taken: Vec<&str> = labelled.iter().map(String::as_str).collect();
    not_taken.retain(|name| !nodes.iter().any(|node| node.name == *name));
    Some(if not_taken.is_empty() {
        ok("no node has an edge label of another tunnel alone")
    } else {
        warning(
            format!(
                "labelled as edge nodes for another tunnel, and not for this one: {}",
                named(&not_taken)
            ),
            "kubectl label node NODE node-restriction.kubernetes.io/culvert-edge=, or \
             --node-selector of the proxy",
        )
    })
}

/// Nodes with the label that called proxies in earlier versions.
pub(super) fn cloud_label(facts: &Facts) -> Option<Judged> {
    let former = &facts.cluster.as_ref()?.as_ref().ok()?.former_clouds;
    let former: Vec<&str> = former.iter().map(String::as_str).collect();
    Some(if former.is_empty() {
        ok("no node has a label that calls proxies and that its kubelet may write")
    } else {
        warning(
            format!(
                "the label culvert.dev/cloud, which a kubelet may give its own node, is at {}: \
                 manifests of earlier versions run proxies there",
                named(&former)
            ),
            "label cloud nodes node-restriction.kubernetes.io/culvert-cloud=, then remove the \
             former label (docs/install-kubernetes.md, From the label culvert.dev/cloud)",
        )
    })
}

/// What kubelets may decide about all hosts of the cloud.
pub(super) fn claims(facts: &Facts) -> Option<Judged> {
    facts.cluster.as_ref()?;
    let claims = facts.claims.as_ref().ok()?;
    if !claims.labels_of_kubelets.is_empty() {
        let labels: Vec<&str> = claims
            .labels_of_kubelets
            .iter()
            .map(String::as_str)
            .collect();
        return Some(warning(
            format!(
                "each kubelet decides whether its node is an edge node: it may write {}",
                named(&labels)
            ),
            "label edge nodes, by their names, node-restriction.kubernetes.io/culvert-edge=, then \
             leave out --node-selector",
        ));
    }
    if claims.annotations {
        return Some(warning(
            "kubelets choose what is steered to their nodes: the proxy trusts their annotations",
            "set the labels node-restriction.kubernetes.io/culvert-ports and -zone, then leave \
             out --trust-node-annotations",
        ));
    }
    Some(if claims.edge_ranges.is_empty() {
        warning(
            "a kubelet may claim any address that neither the cluster nor another node has: no \
             --edge-range is given",
            "--edge-range on every proxy, with the networks that edge nodes' addresses are in \
             (docs/install-kubernetes.md)",
        )
    } else {
        ok("addresses of edge nodes are steered inside --edge-range only")
    })
}

pub(super) fn addresses(facts: &Facts) -> Option<Judged> {
    let nodes = facts.nodes.as_ref().ok()?;
    let mut reasons = BTreeSet::new();
    for node in nodes {
        for reason in &node.reasons {
            if !reason.is_empty() {
                reasons.insert(reason.as_str());
            }
        }
    }
    if let Some(unknown) = reasons
        .iter()
        .find(|reason| reason.contains(RANGES_UNKNOWN))
    {
        return Some(failure(
            *unknown,
            "--edge-range on the proxy, or --service-range and --pod-range: until then nodes are \
             reached by name only",
        ));
    }
    Some(if reasons.is_empty() {
        ok("every address of a node leads to it")
    } else {
        // The reason says it.
        warning(
            named(&Vec::from_iter(reasons)),
            "reach these nodes by name, kube-apiserver by \
             --kubelet-preferred-address-types=Hostname,InternalIP; what is an edge's and \
             what the cloud's is said by --edge-range, --service-range, --pod-range and --protect \
             of the proxy. Leave what is behind two nodes to one of them",
        )
    })
}

pub(super) fn left_out(facts: &Facts) -> Option<Judged> {
    let left_out = facts.left_out.as_ref().ok()?;
    let left_out: Vec<String> = left_out
        .iter()
        .map(|left| format!("{}: {}", left.node, left.reason))
        .collect();
    let left_out: Vec<&str> = left_out.iter().map(String::as_str).collect();
    Some(if left_out.is_empty() {
        ok("no node is left out")
    } else {
        warning(
            named(&left_out),
            "the reason names what to change about the Node; Events of it say the same",
        )
    })
}

pub(super) fn ports(facts: &Facts) -> Option<Judged> {
    if let Some(Ok(cluster)) = &facts.cluster
        && let Some(judged) = config_maps_of_ports(&cluster.ports)
    {
        return Some(judged);
    }
    let nodes = facts.nodes.as_ref().ok()?;
    let mut forbidden: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        for &port in &node.forbidden_ports {
            forbidden.entry(port).or_default().push(&node.name);
        }
    }
    let ports: Vec<String> = forbidden.keys().map(u32::to_string).collect();
    let mut refused = Vec::new();
    for (port, nodes) in &forbidden {
        refused.push(format!("{port} ({})", named(nodes)));
    }
    Some(if ports.is_empty() {
        ok("agents dial every port that is steered to them")
    } else {
        warning(
            format!("steered, but not dialled by agents: {}", refused.join(", ")),
            format!(
                "--port {} on these agents, or take the ports away. In a cluster agents follow \
                 ConfigMap culvert-ports within 90 s, except for --deny-port and --only-port",
                ports.join(",")
            ),
        )
    })
}

fn config_maps_of_ports(ports: &PortsFacts) -> Option<Judged> {
    if let Some(problem) = ports.problems.first() {
        return Some(failure(
            problem,
            "fix the ConfigMap: until then the last good ports are used",
        ));
    }
    if let Some(namespace) = &ports.missing_in {
        return Some(warning(
            format!("there is no ConfigMap {namespace}/culvert-ports"),
            "kubectl apply -k deploy/...: it comes with the manifests. Without it, a \
             taken-over proxy can make it, and agents dial the ports that it names",
        ));
    }
    let unread = ports.unread.as_ref()?;
    let listed: Vec<String> = unread.ports.iter().map(u16::to_string).collect();
    Some(warning(
        format!(
            "kube-system/yurt-tunnel-server-cfg has ports that agents do not read: {}",
            listed.join(", ")
        ),
        &unread.command,
    ))
}

pub(super) fn certificates(facts: &Facts) -> Option<Judged> {
    let certificates = facts.certificates.as_ref().ok()?;
    let certificate = certificates
        .iter()
        .min_by_key(|certificate| certificate.not_after)?;
    let end = UnixTime::from_seconds(certificate.not_after);
    let left = end.since(facts.now);
    let found = format!("that of {} ends at {end}", certificate.owner);
    let own = certificates.first().map(|own| own.not_after) == Some(certificate.not_after);
    let soon = if own {
        EXPIRY_WARNING
    } else {
        AUTHORITY_EXPIRY_WARNING
    };
    let fix = if own {
        "the proxy renews what it made itself, its log says why it did not; your own: replace the \
         files of --tls-cert"
    } else {
        "replace it in time, the new one trusted beside the old one: --ca-cert, or Secret \
         culvert-ca"
    };
    Some(match left {
        Duration::ZERO => failure(format!("{found}, which is past"), fix),
        left if left < soon => warning(found, fix),
        _ => ok(found),
    })
}

pub(super) fn clock(facts: &Facts) -> Option<Judged> {
    let fix = "set the clock, and keep it right: timedatectl set-ntp true";
    let mut begins = UnixTime::default();
    for certificate in facts.certificates.iter().flatten() {
        begins = begins.max(UnixTime::from_seconds(certificate.not_before));
    }
    if begins > facts.now {
        let found = format!(
            "it is {} here, and a certificate in use begins at {begins} only",
            facts.now
        );
        return Some(failure(found, fix));
    }
    let server = match &facts.cluster {
        Some(Ok(cluster)) => cluster.time,
        Some(Err(_)) | None => None,
    };
    let Some(server) = server else {
        return Some(ok(format!(
            "it is {}; there is no other clock to compare with",
            facts.now
        )));
    };
    let skew = server.since(facts.now).max(facts.now.since(server));
    let found = format!("{} s from the API server's clock", skew.as_secs());
    Some(match skew {
        skew if skew >= SKEW_FAILURE => failure(found, fix),
        skew if skew >= SKEW_WARNING => warning(found, fix),
        _ => ok(found),
    })
}

pub(super) fn rbac(facts: &Facts) -> Option<Judged> {
    Some(match facts.cluster.as_ref()? {
        Err(problem) => failure(
            format!("the cluster cannot be asked: {problem}"),
            "see that kube-apiserver is up and reached from here; --kubeconfig, or the pod's \
             service account",
        ),
        Ok(cluster) if cluster.lacking.is_empty() => {
            ok("the API server allows all that the proxy asks for")
        }
        Ok(cluster) => failure(
            format!("not allowed: {}", cluster.lacking.join("; ")),
            "kubectl apply -k deploy/...: its roles give these rights to the service account \
             culvert-proxy",
        ),
    })
}
