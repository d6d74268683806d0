//! SuperEdge: the settings of its two TOML files, its token file, and the flags of tunnel-cloud and
//! tunnel-edge.

use toml::Value;

use super::konnectivity;
use super::kubernetes::{Object, text};
use super::meaning::{Meaning, Problem};
use super::objects::Lookup;
use super::plan::{Component, Part, Plan};
use super::rules::Rule::{Apply, Equal, NoEqual};
use super::rules::{Report, Table, port};
use super::source::{Piece, PlacedPiece, parse_toml, token_nodes};
use super::workload::{TunnelProgram, Workloads};

/// What its manifests make, in the namespaces of its versions.
pub(super) const OBJECTS: &[Lookup] = &[
    Lookup::Deployment("edge-system", "tunnel-cloud"),
    Lookup::DaemonSet("edge-system", "tunnel-edge"),
    Lookup::DaemonSet("kube-system", "tunnel-edge"),
    Lookup::ConfigMap("edge-system", "tunnel-cloud-conf"),
    Lookup::ConfigMap("edge-system", "tunnel-edge-conf"),
    Lookup::ConfigMap("kube-system", "tunnel-edge-conf"),
    Lookup::ConfigMap("edge-system", "tunnel-cloud-token"),
    Lookup::ConfigMap("edge-system", "tunnel-nodes"),
    Lookup::ConfigMap("edge-system", "tunnel-cache"),
    Lookup::Service("edge-system", "tunnel-cloud"),
    Lookup::Deployment("edge-system", "tunnel-coredns"),
];

const OWN_AUTHORITY: &str = "the proxies make their own authority, in Secret culvert-ca";
const PASSES_THROUGH: &str =
    "the client's TLS passes through to the kubelet; Culvert has no credential of a kubelet";
const LOG: &str =
    "--log; logs go to standard error, and `culvert-proxy log FILTER` changes them while it runs";
const PAGES: &str =
    "--admin-listen: /livez, /readyz, /metrics and /debug, on loopback; `culvert-proxy log FILTER`";
const NAMES: &str =
    "the redirector answers names; component `hosts` for a CoreDNS that reads a ConfigMap";
const FROM_THE_EDGE: &str = "Culvert carries connections from the cloud to the edge only";

/// The keys of both versions. A `*` is any one key.
const SETTINGS: Table = &[
    (
        "mode.cloud.stream.server.grpcport",
        Equal("--agent-listen [::]:7400: another port, so that both tunnels can run meanwhile"),
    ),
    (
        "mode.cloud.stream.server.grpc_port",
        Equal("--agent-listen [::]:7400: another port, so that both tunnels can run meanwhile"),
    ),
    ("mode.cloud.stream.server.logport", Equal(PAGES)),
    ("mode.cloud.stream.server.log_port", Equal(PAGES)),
    (
        "mode.cloud.stream.server.metricsport",
        Equal("--metrics-listen; docs/metrics.md has the names"),
    ),
    (
        "mode.cloud.stream.server.metrics_port",
        Equal("--metrics-listen; docs/metrics.md has the names"),
    ),
    (
        "mode.cloud.stream.server.channelzaddr",
        NoEqual("`culvert status` and /debug show streams; there is no channelz"),
    ),
    (
        "mode.cloud.stream.server.channelz_addr",
        NoEqual("`culvert status` and /debug show streams; there is no channelz"),
    ),
    ("mode.cloud.stream.server.key", Equal(OWN_AUTHORITY)),
    ("mode.cloud.stream.server.cert", Equal(OWN_AUTHORITY)),
    (
        "mode.cloud.stream.server.tokenfile",
        Equal(
            "not needed: agents enrol by the token of their pod; `culvert token create NODE` without a cluster",
        ),
    ),
    ("mode.cloud.stream.dns.configmap", Equal(NAMES)),
    ("mode.cloud.stream.dns.hosts", Equal(NAMES)),
    ("mode.cloud.stream.dns.service", Equal(NAMES)),
    (
        "mode.cloud.stream.dns.debug",
        NoEqual("names always follow the directory"),
    ),
    (
        "mode.cloud.stream.register.service",
        Equal("not needed: proxies find each other by Leases"),
    ),
    (
        "mode.cloud.tls.tls_cipher_suites",
        Equal("TLS 1.3 only, with its own suites"),
    ),
    ("mode.cloud.tls.tls_min_version", Equal("TLS 1.3 only")),
    ("mode.cloud.tcp.*", Apply(edge_port)),
    ("mode.cloud.https.cert", NoEqual(PASSES_THROUGH)),
    ("mode.cloud.https.key", NoEqual(PASSES_THROUGH)),
    ("mode.cloud.https.addr.*", Apply(edge_port)),
    (
        "mode.cloud.egress.port",
        Equal(
            "deploy/overlays/egress-selector, by a Unix socket; give the file of kube-apiserver's egress selector too",
        ),
    ),
    (
        "mode.cloud.http_proxy.port",
        Equal(
            "CONNECT on /run/culvert/connect.sock; by TCP with client certificates: --connect-listen and --connect-client-ca",
        ),
    ),
    ("mode.cloud.ssh.port", Apply(ssh)),
    (
        "mode.edge.stream.client.token",
        NoEqual("a token of one node that works once, or the token of its pod, takes its place"),
    ),
    ("mode.edge.stream.client.cert", Equal(OWN_AUTHORITY)),
    (
        "mode.edge.stream.client.dns",
        Equal("--server-name; agents verify a fixed name, whatever they dial"),
    ),
    ("mode.edge.stream.client.servername", Apply(server_address)),
    ("mode.edge.stream.client.server_name", Apply(server_address)),
    ("mode.edge.stream.client.logport", Equal(PAGES)),
    ("mode.edge.stream.client.log_port", Equal(PAGES)),
    (
        "mode.edge.stream.client.channelzaddr",
        NoEqual("/debug of the agent shows streams; there is no channelz"),
    ),
    (
        "mode.edge.stream.client.channelz_addr",
        NoEqual("/debug of the agent shows streams; there is no channelz"),
    ),
    ("mode.edge.https.cert", NoEqual(PASSES_THROUGH)),
    ("mode.edge.https.key", NoEqual(PASSES_THROUGH)),
    ("mode.edge.http_proxy.ip", NoEqual(FROM_THE_EDGE)),
    ("mode.edge.http_proxy.port", NoEqual(FROM_THE_EDGE)),
];

/// The flags of the program `tunnel`, and its variables.
const TUNNEL: Table = &[
    ("m", Equal("two programs: culvert-proxy and culvert-agent")),
    (
        "c",
        Equal("flags in the manifests; each has an environment variable too"),
    ),
    (
        "k",
        Equal("the proxy uses its service account; --kubeconfig outside of a pod"),
    ),
    (
        "kube-qps",
        NoEqual("the proxy watches, and asks nothing for a connection"),
    ),
    (
        "kube-burst",
        NoEqual("the proxy watches, and asks nothing for a connection"),
    ),
    ("v", Equal(LOG)),
    (
        "log-dir",
        NoEqual("logs go to standard error, where the container runtime keeps them"),
    ),
    ("alsologtostderr", Equal(LOG)),
    ("logtostderr", Equal(LOG)),
    (
        "env NODE_NAME",
        Equal("not needed: the token of the pod says its node"),
    ),
    (
        "env POD_IP",
        Equal("CULVERT_PEER_ADVERTISE, in the manifests"),
    ),
    (
        "env POD_NAME",
        Equal("not needed: proxies find each other by Leases"),
    ),
    ("env POD_NAMESPACE", Equal("--namespace; found in a pod")),
    (
        "env USER_NAMESPACE",
        NoEqual("Culvert reaches nodes, not Services of the edge"),
    ),
    (
        "env PROXY_AUTHORIZATION",
        NoEqual("clients of --connect-listen show a certificate instead of a password"),
    ),
    ("env EDGE_NO_PROXY", NoEqual(FROM_THE_EDGE)),
    (
        "env CLOUD_PROXY",
        Equal("HTTPS_PROXY of the agent, for the way to the proxies"),
    ),
];

const WORKLOADS: Workloads = Workloads {
    programs: &[
        TunnelProgram {
            words: &["tunnel"],
            workload: Some("tunnel-cloud"),
            part: Part::Server,
            flags: TUNNEL,
            variables: Some(TUNNEL),
            remove: None,
        },
        TunnelProgram {
            words: &["tunnel"],
            workload: None,
            part: Part::Agent,
            flags: TUNNEL,
            variables: Some(TUNNEL),
            remove: None,
        },
    ],
    dns: Some("tunnel-coredns"),
    namespace: "edge-system",
    label_nodes: "kubectl label node -l superedge.io/edge-node=enable node-restriction.kubernetes.io/culvert-edge=",
    static_pods: false,
    after: None,
};

/// Translates one part of the input.
pub(super) fn translate(
    found: &PlacedPiece,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<(), Problem> {
    match &found.piece {
        Piece::Toml(table) => settings(&found.place, table, plan, report),
        Piece::TokenNodes(nodes) => {
            tokens(&found.place, nodes, report);
            Ok(())
        }
        Piece::Object(object) => object_of(found, object, plan, report),
    }
}

fn object_of(
    found: &PlacedPiece,
    object: &Object,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<(), Problem> {
    match (object.kind(), object.bare_name()) {
        ("ConfigMap", "tunnel-cloud-token") => {
            for (key, value) in object.data() {
                let place = format!("{}: {key}", found.place);
                tokens(&place, &token_nodes(&place, value)?, report);
            }
        }
        ("ConfigMap", "tunnel-nodes" | "tunnel-cache") => {
            if object.bare_name() == "tunnel-nodes" {
                plan.require(Component::Hosts);
            }
            report.add(&found.place, "data", Meaning::equal("component `hosts` keeps ConfigMap kube-system/culvert-hosts, key `hosts` (docs/dns.md)"));
        }
        ("ConfigMap", _) => {
            for (key, value) in object.data() {
                let place = format!("{}: {key}", found.place);
                if key.ends_with(".toml") {
                    settings(&place, &parse_toml(&place, value)?, plan, report)?;
                } else {
                    report.add(&found.place, key, Meaning::Unknown);
                }
            }
        }
        ("Deployment" | "DaemonSet" | "Pod", _) => {
            WORKLOADS.translate(found, object, plan, report)?;
        }
        ("Service", "tunnel-cloud") => {
            let text = match text(object.0.pointer("/spec/type")) {
                "LoadBalancer" => {
                    plan.require(Component::LoadBalancer);
                    "component `loadbalancer`: agents dial port 7400 of it"
                }
                "NodePort" => {
                    plan.require(Component::NodePort);
                    "component `nodeport`: agents dial port 30740 of the cloud nodes"
                }
                _ => "not needed: agents dial port 7400 of the cloud nodes",
            };
            report.add(&found.place, "type", Meaning::equal(text));
        }
        ("EgressSelectorConfiguration", _) => konnectivity::egress(found, object, plan, report),
        (kind, _) => report.add(&found.place, kind, Meaning::no_equal("not taken over: Culvert's manifests have their own; delete it with SuperEdge's tunnel")),
    }
    Ok(())
}

/// Each node of the token file. Tokens are not read.
fn tokens(place: &str, nodes: &[String], report: &mut Report) {
    for node in nodes {
        let meaning = match node.as_str() {
            "default" => Meaning::no_equal(
                "refused: with this token a host becomes any node. Agents enrol by the token of their pod; without a cluster `culvert token create --nodes FILE --group` makes one token for the nodes that you list",
            ),
            _ => Meaning::equal(format!(
                "not needed in a cluster: its agent enrols by the token of its pod. Without one: culvert token create {node}"
            )),
        };
        report.add(place, node, meaning);
    }
}

/// Looks up each setting by its whole name, such as `mode.cloud.ssh.port`.
fn settings(
    place: &str,
    table: &toml::Table,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<(), Problem> {
    for (name, value) in leaves("", table) {
        let known = SETTINGS.iter().any(|(known, _)| *known == name);
        let (above, key) = name.rsplit_once('.').unwrap_or(("", &name));
        let under = ["mode.cloud.tcp", "mode.cloud.https.addr"]
            .into_iter()
            .find(|table| name.starts_with(&format!("{table}.")));
        let row = match under {
            Some(table) if !known => format!("{table}.*"),
            _ => format!("{above}{}{key}", if above.is_empty() { "" } else { "." }),
        };
        report.look_up((place, &name), SETTINGS, (&row, Some(&value)), plan)?;
    }
    Ok(())
}

/// All values of a table, by their whole names, in order.
fn leaves(above: &str, table: &toml::Table) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (key, value) in table {
        let name = match above {
            "" => key.clone(),
            above => format!("{above}.{key}"),
        };
        if let Value::Table(table) = value {
            found.extend(leaves(&name, table));
        } else {
            let text = if let Value::String(text) = value {
                text.clone()
            } else {
                value.to_string()
            };
            found.push((name, text));
        }
    }
    found
}

/// `"0.0.0.0:6443" = "127.0.0.1:6443"` and `"10250" = "127.0.0.1:10250"`: a port of the edge.
fn edge_port(value: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    let (host, number) = value
        .unwrap_or_default()
        .rsplit_once(':')
        .ok_or("this is not ADDRESS:PORT of an edge node: write one, such as 127.0.0.1:10250")?;
    let number = port(number)?;
    if culvert_api::ports::NODE_PORTS.contains(&number) {
        return Ok(Meaning::equal(format!(
            "port {number} is steered as it is: dial the node itself"
        )));
    }
    match host {
        "127.0.0.1" | "localhost" | "[::1]" => plan.steer_to_loopback([number]),
        _ => plan.steer([number]),
    }
    Ok(Meaning::equal(format!(
        "ConfigMap culvert-ports has port {number}: dial NODE:{number}. To keep the port of the cloud, name its node in ConfigMap culvert-forwards (docs/forwards.md): none leads to whichever edge is there"
    )))
}

fn ssh(_: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    plan.allow(22);
    Ok(Meaning::equal(
        "--port 22 of culvert-agent: `ssh NODE` by name from a cloud node, without a ProxyCommand",
    ))
}

fn server_address(value: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    plan.advertise(value.unwrap_or_default())
}
