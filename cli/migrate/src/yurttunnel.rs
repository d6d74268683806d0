//! YurtTunnel: the flags of yurt-tunnel-server and yurt-tunnel-agent, their ConfigMaps and Services.

use super::kubernetes::{Object, text};
use super::meaning::{Meaning, Problem};
use super::objects::Lookup;
use super::plan::{Component, Part, Plan};
use super::rules::Rule::{Apply, Equal, NoEqual};
use super::rules::{Report, Table, port, ports};
use super::source::{Piece, PlacedPiece};
use super::workload::{TunnelProgram, Workloads};

/// What its manifests make.
pub(super) const OBJECTS: &[Lookup] = &[
    Lookup::Deployment("kube-system", "yurt-tunnel-server"),
    Lookup::DaemonSet("kube-system", "yurt-tunnel-agent"),
    Lookup::ConfigMap("kube-system", "yurt-tunnel-server-cfg"),
    Lookup::ConfigMap("kube-system", "yurt-tunnel-nodes"),
    Lookup::Service("kube-system", "x-tunnel-server-svc"),
    Lookup::Service("kube-system", "x-tunnel-server-internal-svc"),
    Lookup::Deployment("kube-system", "yurt-tunnel-dns"),
];

/// The annotation with the address that agents dial.
const EXTERNAL_ADDRESS: &str = "/metadata/annotations/x-tunnel-server-external-addr";

/// klog's flags, in every program of this file.
const LOG: &str = "--log and --log-format; `culvert-proxy log FILTER` and `culvert-agent log FILTER` while it runs";
const OWN_AUTHORITY: &str = "the proxies make their own authority, in Secret culvert-ca";

const SERVER: Table = &[
    ("version", Equal("--version")),
    (
        "kube-config",
        Equal("the proxy uses its service account; --kubeconfig outside of a pod"),
    ),
    (
        "bind-address",
        Equal("--agent-listen; the manifests listen on every address of the node"),
    ),
    (
        "insecure-bind-address",
        NoEqual(
            "no port gives strangers what kubelets answer: clients dial the node and show their own credential",
        ),
    ),
    (
        "cert-dns-names",
        Equal("not needed: agents verify a fixed name, whatever they dial"),
    ),
    (
        "cert-ips",
        Equal("not needed: agents verify a fixed name, whatever they dial"),
    ),
    ("cert-dir", Equal(OWN_AUTHORITY)),
    ("enable-iptables", Apply(iptables)),
    (
        "enable-dns-controller",
        Equal(
            "the redirector answers names; component `hosts` for a CoreDNS that reads a ConfigMap",
        ),
    ),
    ("egress-selector-enable", Apply(egress)),
    (
        "iptables-sync-period",
        Equal("not needed: the redirector follows each change at once"),
    ),
    (
        "dns-sync-period",
        Equal("not needed: the redirector follows each change at once"),
    ),
    (
        "server-count",
        Equal(
            "not needed: agents keep tunnels to two different proxies (--proxies), and proxies pass connections on",
        ),
    ),
    ("proxy-strategy", Apply(strategy)),
    ("tunnel-agent-connect-port", Apply(agent_port)),
    (
        "secure-port",
        NoEqual("clients dial the kubelet's own port, and Culvert leaves its TLS alone"),
    ),
    (
        "insecure-port",
        NoEqual(
            "no port gives strangers what kubelets answer: Prometheus needs a service account with nodes/metrics",
        ),
    ),
    (
        "meta-port",
        Equal("--admin-listen 127.0.0.1:7409; --metrics-listen for a Prometheus in a pod"),
    ),
    ("v", Equal(LOG)),
    ("vmodule", Equal(LOG)),
    ("logtostderr", Equal(LOG)),
    ("alsologtostderr", Equal(LOG)),
    ("stderrthreshold", Equal(LOG)),
    (
        "log_dir",
        NoEqual("logs go to standard error, where the container runtime keeps them"),
    ),
    (
        "log_file",
        NoEqual("logs go to standard error, where the container runtime keeps them"),
    ),
];

const AGENT: Table = &[
    ("version", Equal("--version")),
    (
        "node-name",
        Equal("not needed: the token of the pod says its node"),
    ),
    (
        "node-ip",
        Equal("not needed: the directory has the addresses of the Node"),
    ),
    ("tunnelserver-addr", Apply(server_address)),
    (
        "apiserver-addr",
        NoEqual("the agent asks nothing of the API server"),
    ),
    (
        "kube-config",
        NoEqual("the agent asks nothing of the API server"),
    ),
    (
        "agent-identifiers",
        NoEqual("an agent is the node of its certificate, and claims no other name or address"),
    ),
    (
        "meta-host",
        Equal(
            "--admin-listen 127.0.0.1:7429, which is reached through the tunnel; --metrics-listen for others",
        ),
    ),
    (
        "meta-port",
        Equal(
            "--admin-listen 127.0.0.1:7429, which is reached through the tunnel; --metrics-listen for others",
        ),
    ),
    ("cert-dir", Equal(OWN_AUTHORITY)),
    ("v", Equal(LOG)),
    ("vmodule", Equal(LOG)),
    ("logtostderr", Equal(LOG)),
    ("alsologtostderr", Equal(LOG)),
    ("stderrthreshold", Equal(LOG)),
    (
        "log_dir",
        NoEqual("logs go to standard error, where the container runtime keeps them"),
    ),
    (
        "log_file",
        NoEqual("logs go to standard error, where the container runtime keeps them"),
    ),
];

/// The keys of yurt-tunnel-server-cfg.
const PORTS: Table = &[
    ("http-proxy-ports", Apply(steered)),
    ("https-proxy-ports", Apply(steered)),
    ("dnat-ports-pair", Apply(steered)),
    ("localhost-proxy-ports", Apply(on_loopback)),
];

const WORKLOADS: Workloads = Workloads {
    programs: &[
        TunnelProgram {
            words: &["yurt-tunnel-server"],
            workload: None,
            part: Part::Server,
            flags: SERVER,
            variables: None,
            remove: Some(
                "on the server's node: `iptables -t nat -S | grep TUNNEL-PORT` prints nothing (a killed server leaves its chains)",
            ),
        },
        TunnelProgram {
            words: &["yurt-tunnel-agent"],
            workload: None,
            part: Part::Agent,
            flags: AGENT,
            variables: None,
            remove: None,
        },
    ],
    dns: Some("yurt-tunnel-dns"),
    namespace: "kube-system",
    label_nodes: "kubectl label node -l openyurt.io/is-edge-worker=true node-restriction.kubernetes.io/culvert-edge=",
    static_pods: false,
    after: None,
};

/// Translates one part of the input.
pub(super) fn translate(
    found: &PlacedPiece,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<(), Problem> {
    let Piece::Object(object) = &found.piece else {
        return Err(Problem::new(
            &found.place,
            "YurtTunnel has no such file: give its manifests, or --from superedge",
        ));
    };
    match (object.kind(), object.bare_name()) {
        ("ConfigMap", "yurt-tunnel-server-cfg") => {
            for (key, value) in object.data() {
                report.look_up((&found.place, key), PORTS, (key, Some(value)), plan)?;
            }
            plan.delete(
                Part::Settings,
                "kube-system",
                "ConfigMap",
                "yurt-tunnel-server-cfg",
            );
        }
        ("ConfigMap", "yurt-tunnel-nodes") => {
            plan.require(Component::Hosts);
            let text = "component `hosts` keeps ConfigMap kube-system/culvert-hosts, key `hosts`: let CoreDNS read that one (docs/dns.md), or its own zone from the redirector";
            report.add(&found.place, "tunnel-nodes", Meaning::equal(text));
            plan.delete(
                Part::Settings,
                "kube-system",
                "ConfigMap",
                "yurt-tunnel-nodes",
            );
        }
        ("Deployment" | "DaemonSet" | "Pod", _) => {
            WORKLOADS.translate(found, object, plan, report)?;
        }
        ("Service", _) => service(found, object, plan, report)?,
        (kind, _) => report.add(
            &found.place,
            kind,
            Meaning::no_equal(
                "not taken over: Culvert's manifests have their own; delete it with YurtTunnel",
            ),
        ),
    }
    Ok(())
}

fn service(
    found: &PlacedPiece,
    object: &Object,
    plan: &mut Plan,
    report: &mut Report,
) -> Result<(), Problem> {
    let external = text(object.0.pointer(EXTERNAL_ADDRESS));
    if !external.is_empty() {
        let shown = "x-tunnel-server-external-addr";
        let meaning = plan
            .advertise(external)
            .map_err(|problem| Problem::new(&found.place, format!("{shown}: {problem}")))?;
        report.add(&found.place, shown, meaning);
    }
    let kind = text(object.0.pointer("/spec/type"));
    let meaning = match (object.bare_name(), kind) {
        ("x-tunnel-server-svc", "LoadBalancer") => {
            plan.require(Component::LoadBalancer);
            Meaning::equal("component `loadbalancer`: agents dial port 7400 of it")
        }
        ("x-tunnel-server-svc", "NodePort") => {
            plan.require(Component::NodePort);
            Meaning::equal("component `nodeport`: agents dial port 30740 of the cloud nodes")
        }
        ("x-tunnel-server-svc", _) => {
            Meaning::equal("not needed: agents dial port 7400 of the cloud nodes")
        }
        ("x-tunnel-server-internal-svc", _) => {
            Meaning::no_equal("names of edge nodes lead to VIPs of their own, on every port")
        }
        _ => Meaning::Unknown,
    };
    let known = meaning != Meaning::Unknown;
    report.add(&found.place, "type", meaning);
    if known {
        plan.delete(Part::Service, "kube-system", "Service", object.bare_name());
    }
    Ok(())
}

fn steered(value: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    plan.steer(ports(value.unwrap_or_default())?);
    Ok(Meaning::equal(
        "ConfigMap culvert-ports, key `ports`; the client's own scheme passes through",
    ))
}

fn on_loopback(value: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    plan.steer_to_loopback(ports(value.unwrap_or_default())?);
    Ok(Meaning::equal(
        "ConfigMap culvert-ports, key `localhost-ports`",
    ))
}

fn server_address(value: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    match value.unwrap_or_default() {
        "" => Ok(Meaning::equal(
            "not needed: the proxies tell their addresses in ConfigMap culvert-agent",
        )),
        address => plan.advertise(address),
    }
}

fn iptables(value: Option<&str>, _: &mut Plan) -> Result<Meaning, String> {
    Ok(match value {
        Some("false") => {
            Meaning::no_equal("names lead to VIPs, and these need the redirector to steer")
        }
        _ => Meaning::equal(
            "the redirector steers, on every node where it runs, host and pods; without iptables",
        ),
    })
}

fn egress(value: Option<&str>, _: &mut Plan) -> Result<Meaning, String> {
    Ok(match value {
        Some("false") => Meaning::equal("off, as here: deploy/overlays/egress-selector has it"),
        _ => Meaning::no_equal(
            "YurtTunnel never had it and ends with it; deploy/overlays/egress-selector has it",
        ),
    })
}

fn strategy(value: Option<&str>, _: &mut Plan) -> Result<Meaning, String> {
    Ok(match value {
        Some("destHost") | None => {
            Meaning::equal("always: an address or name leads to its one node")
        }
        Some(_) => Meaning::no_equal(
            "no connection goes to an agent by chance: an address or name leads to its one node",
        ),
    })
}

fn agent_port(value: Option<&str>, _: &mut Plan) -> Result<Meaning, String> {
    port(value.unwrap_or_default())?;
    Ok(Meaning::equal(
        "--agent-listen [::]:7400: another port, so that both tunnels can run meanwhile",
    ))
}
