//! konnectivity: the flags of proxy-server and proxy-agent, and the egress-selector file of
//! kube-apiserver.

use serde_json::Value;

use super::kubernetes::{Object, text};
use super::meaning::{Meaning, Problem};
use super::objects::Lookup;
use super::plan::{Component, Part, Plan};
use super::rules::Rule::{Apply, Equal, NoEqual};
use super::rules::{Report, Table};
use super::source::{Piece, PlacedPiece};
use super::workload::{TunnelProgram, Workloads};

/// What its manifests make, and static pods by their label.
pub(super) const OBJECTS: &[Lookup] = &[
    Lookup::Pods("kube-system", "k8s-app=konnectivity-server"),
    Lookup::Deployment("kube-system", "konnectivity-server"),
    Lookup::DaemonSet("kube-system", "konnectivity-server"),
    Lookup::DaemonSet("kube-system", "konnectivity-agent"),
    Lookup::Deployment("kube-system", "konnectivity-agent"),
];

const OWN_AUTHORITY: &str = "the proxies make their own authority, in Secret culvert-ca";
const PAGES: &str = "--admin-listen: /livez, /readyz, /metrics and /debug, on loopback";
const LOG: &str = "--log and --log-format";
const LOG_FILE: &str = "logs go to standard error, where the container runtime keeps them";
const KEEPALIVE: &str = "--keepalive of culvert-agent: a dead tunnel is noticed within 57 s by default, one in use within 18 s";
const BY_LEASES: &str = "not needed: proxies find each other by Leases, and agents keep tunnels to two of them (--proxies)";
const QUEUES: &str = "not needed: each connection has its own window (--stream-window), all together a budget (--buffer-budget)";
const NO_PROFILES: &str = "there are no profiles; /debug shows nodes, tunnels and streams";
const REVIEWS: &str =
    "the API server reviews the token of each agent's pod once; its audience is `culvert`";

const SERVER: Table = &[
    (
        "mode",
        Equal("HTTP CONNECT; kube-apiserver's `proxyProtocol: HTTPConnect`"),
    ),
    (
        "uds-name",
        Equal("--connect-socket /run/culvert/connect.sock"),
    ),
    (
        "udsName",
        Equal("--connect-socket /run/culvert/connect.sock"),
    ),
    ("delete-existing-uds-file", Equal("always")),
    (
        "server-port",
        Equal("--connect-listen with --connect-client-ca, where the socket is not enough"),
    ),
    ("server-bind-address", Equal("--connect-listen")),
    ("server-cert", Equal(OWN_AUTHORITY)),
    ("server-key", Equal(OWN_AUTHORITY)),
    ("server-ca-cert", Equal("--connect-client-ca")),
    (
        "frontend-keepalive-time",
        NoEqual("kube-apiserver is on the same host"),
    ),
    (
        "agent-port",
        Equal("--agent-listen [::]:7400: another port, so that both tunnels can run meanwhile"),
    ),
    ("agent-bind-address", Equal("--agent-listen")),
    ("cluster-cert", Equal(OWN_AUTHORITY)),
    ("cluster-key", Equal(OWN_AUTHORITY)),
    ("cluster-ca-cert", Equal(OWN_AUTHORITY)),
    ("keepalive-time", Equal(KEEPALIVE)),
    ("cipher-suites", Equal("TLS 1.3 only, with its own suites")),
    ("tls-min-version", Equal("TLS 1.3 only")),
    ("admin-port", Equal(PAGES)),
    ("admin-bind-address", Equal(PAGES)),
    ("health-port", Equal(PAGES)),
    ("health-bind-address", Equal(PAGES)),
    ("enable-profiling", NoEqual(NO_PROFILES)),
    ("enable-contention-profiling", NoEqual(NO_PROFILES)),
    ("server-id", Equal("not needed: a proxy makes its own")),
    ("server-count", Equal(BY_LEASES)),
    ("enable-lease-controller", Equal(BY_LEASES)),
    ("lease-namespace", Equal("--namespace")),
    ("lease-label", Equal(BY_LEASES)),
    ("agent-namespace", Equal(REVIEWS)),
    ("agent-service-account", Equal(REVIEWS)),
    ("authentication-audience", Equal(REVIEWS)),
    (
        "kubeconfig",
        Equal("the proxy uses its service account; --kubeconfig outside of a pod"),
    ),
    (
        "kubeconfig-qps",
        NoEqual("the proxy watches, and asks nothing for a connection"),
    ),
    (
        "kubeconfig-burst",
        NoEqual("the proxy watches, and asks nothing for a connection"),
    ),
    (
        "kube-api-content-type",
        NoEqual("the proxy speaks JSON with the API server"),
    ),
    ("proxy-strategies", Apply(strategies)),
    ("xfr-channel-size", Equal(QUEUES)),
    ("frontend-write-channel-size", Equal(QUEUES)),
    (
        "graceful-shutdown-timeout",
        Equal("--grace, 30 s by default"),
    ),
    (
        "backend-dial-timeout",
        Equal("always: an agent dials for 5 s, a proxy waits for 8 s"),
    ),
    (
        "warn-on-channel-limit",
        NoEqual("there are no queues of packets"),
    ),
    ("v", Equal(LOG)),
    ("vmodule", Equal(LOG)),
    ("logtostderr", Equal(LOG)),
    ("alsologtostderr", Equal(LOG)),
    ("stderrthreshold", Equal(LOG)),
    ("log-file", NoEqual(LOG_FILE)),
    ("log-dir", NoEqual(LOG_FILE)),
    ("log-file-max-size", NoEqual(LOG_FILE)),
];

const AGENT: Table = &[
    ("proxy-server-host", Apply(server_host)),
    ("proxy-server-port", Equal("port 7400")),
    ("agent-cert", Equal(OWN_AUTHORITY)),
    ("agent-key", Equal(OWN_AUTHORITY)),
    ("ca-cert", Equal(OWN_AUTHORITY)),
    (
        "alpn-proto",
        Equal("always `culvert-tunnel/1`, and `h2` for enrolment"),
    ),
    (
        "service-account-token-path",
        Equal("--service-account-token, in the manifests"),
    ),
    (
        "agent-id",
        NoEqual("an agent is the node of its certificate"),
    ),
    (
        "agent-identifiers",
        NoEqual(
            "an agent dials its own node, and claims no other address; --direct of the proxy reaches ranges of the cloud",
        ),
    ),
    (
        "sync-interval",
        Equal("not needed: an agent dials again at once, then with growing pauses"),
    ),
    (
        "sync-interval-cap",
        Equal("not needed: an agent dials again at once, then with growing pauses"),
    ),
    ("sync-forever", Equal("always")),
    ("probe-interval", Equal(KEEPALIVE)),
    ("keepalive-time", Equal(KEEPALIVE)),
    ("xfr-channel-size", Equal(QUEUES)),
    (
        "warn-on-channel-limit",
        NoEqual("there are no queues of packets"),
    ),
    ("count-server-leases", Equal(BY_LEASES)),
    ("lease-namespace", Equal(BY_LEASES)),
    ("lease-label", Equal(BY_LEASES)),
    ("lease-label-selector", Equal(BY_LEASES)),
    ("server-count-source", Equal(BY_LEASES)),
    (
        "kubeconfig",
        NoEqual("the agent asks nothing of the API server"),
    ),
    (
        "kube-api-content-type",
        NoEqual("the agent asks nothing of the API server"),
    ),
    ("health-server-host", Equal(PAGES)),
    ("health-server-port", Equal(PAGES)),
    ("admin-bind-address", Equal(PAGES)),
    ("admin-server-port", Equal(PAGES)),
    ("enable-profiling", NoEqual(NO_PROFILES)),
    ("enable-contention-profiling", NoEqual(NO_PROFILES)),
    ("v", Equal(LOG)),
    ("vmodule", Equal(LOG)),
    ("logtostderr", Equal(LOG)),
    ("alsologtostderr", Equal(LOG)),
    ("stderrthreshold", Equal(LOG)),
    ("log-file", NoEqual(LOG_FILE)),
];

const WORKLOADS: Workloads = Workloads {
    programs: &[
        TunnelProgram {
            words: &["proxy-server", "konnectivity-server"],
            workload: None,
            part: Part::Server,
            flags: SERVER,
            variables: None,
            remove: None,
        },
        TunnelProgram {
            words: &["proxy-agent", "konnectivity-agent"],
            workload: None,
            part: Part::Agent,
            flags: AGENT,
            variables: None,
            remove: None,
        },
    ],
    dns: None,
    namespace: "kube-system",
    label_nodes: "kubectl label node NODE... node-restriction.kubernetes.io/culvert-edge=     # each node that cannot be dialled",
    static_pods: true,
    after: Some(
        "webhooks and aggregated APIs run on cloud nodes: Culvert reaches no Pod or Service of an edge node",
    ),
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
            "konnectivity has no such file: give its manifests, or --from superedge",
        ));
    };
    match object.kind() {
        "EgressSelectorConfiguration" => egress(found, object, plan, report),
        "Deployment" | "DaemonSet" | "Pod" => {
            WORKLOADS.translate(found, object, plan, report)?;
        }
        kind => report.add(
            &found.place,
            kind,
            Meaning::no_equal(
                "not taken over: Culvert's manifests have their own; delete it with konnectivity",
            ),
        ),
    }
    Ok(())
}

/// The file of kube-apiserver's `--egress-selector-config-file`.
pub(super) fn egress(found: &PlacedPiece, object: &Object, plan: &mut Plan, report: &mut Report) {
    let selections = object.0.get("egressSelections").and_then(Value::as_array);
    for selection in selections.into_iter().flatten() {
        let name = text(selection.get("name"));
        let protocol = text(selection.pointer("/connection/proxyProtocol"));
        let shown = format!("egressSelections: {name}");
        let meaning = match (name, protocol) {
            (_, "Direct") => Meaning::equal("the same: leave it in the new file"),
            ("cluster", _) => {
                plan.require(Component::EgressSelector);
                Meaning::equal(
                    "components `egress-selector` and `names-only`, with deploy/components/egress-selector/egress-selector-configuration.yaml as the new file",
                )
            }
            ("controlplane" | "master" | "etcd", _) => Meaning::no_equal(
                "kube-apiserver reaches its own side by itself: leave the selection out",
            ),
            _ => Meaning::Unknown,
        };
        report.add(&found.place, &shown, meaning);
    }
}

fn strategies(value: Option<&str>, _: &mut Plan) -> Result<Meaning, String> {
    Ok(match value {
        Some("destHost") => Meaning::equal("always: an address or name leads to its one node"),
        _ => Meaning::no_equal(
            "no connection goes to an agent by chance: an address or name leads to its one node; --direct of the proxy reaches ranges of the cloud",
        ),
    })
}

/// The address of the servers, unless it is one of this host or a variable.
fn server_host(value: Option<&str>, plan: &mut Plan) -> Result<Meaning, String> {
    match value.unwrap_or_default() {
        "" | "127.0.0.1" | "localhost" => Ok(Meaning::equal(
            "not needed: the proxies tell their addresses in ConfigMap culvert-agent",
        )),
        host => {
            let host = match host.parse::<std::net::Ipv6Addr>() {
                Ok(address) => format!("[{address}]"),
                Err(_) => host.to_owned(),
            };
            plan.advertise(&format!("{host}:8091"))
        }
    }
}
