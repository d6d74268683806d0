//! The checks: each a judgement on the facts, in the order in which one thing rests on another.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::facts::{Answer, Daemon, Dialled, Facts, LIMITS};
use super::finding::{Finding, Judged, failure, ok, warning};
use crate::clock::UnixTime;
use culvert_api::agent_config::MAX_PROXIES;
use culvert_api::installed::{HookScope, Installed, Mechanism, Refusal};
use culvert_api::proto::control::{CertificateStatus, NodeStatus};

use crate::cluster::MAX_NODES;

/// Certificates that end sooner were not renewed when they should have been.
const SOON: Duration = Duration::from_secs(6 * 3600);
/// An authority has to be replaced by people, who need time.
const SOON_FOR_AN_AUTHORITY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Certificates begin a few minutes before they are made.
const SKEW_WARNING: Duration = Duration::from_secs(10);
const SKEW_FAILURE: Duration = Duration::from_secs(120);
/// What the directory says of addresses in a cluster of which it does not know what it uses itself.
const RANGES_UNKNOWN: &str = "ranges of Services and pods are unknown";
/// Names in a sentence; the others are counted.
const NAMED: usize = 5;

/// The name of a check and its judgement; `None`: there is nothing to judge here.
type Check = (&'static str, fn(&Facts) -> Option<Judged>);

const CHECKS: [Check; 26] = [
    ("cgroup2", cgroup2),
    ("bpffs", bpffs),
    ("redirector", redirector),
    ("mechanism", mechanism),
    ("hooks", hooks),
    ("neighbours", neighbours),
    ("nftables", nftables),
    ("firewall", firewall),
    ("route", route),
    ("dns", dns),
    ("resolver", resolver),
    ("names", names),
    ("proxy", proxy),
    ("intercept", intercept),
    ("dial", dial),
    ("tunnels", tunnels),
    ("caps", caps),
    ("limits", limits),
    ("edge label", edge_label),
    ("claims", claims),
    ("addresses", addresses),
    ("left out", left_out),
    ("ports", ports),
    ("certificates", certificates),
    ("clock", clock),
    ("rbac", rbac),
];

/// What all checks find.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let finding = |(check, judge): &Check| {
        let (verdict, found, fix) = judge(facts)?;
        Some(Finding {
            check,
            verdict,
            found,
            fix,
        })
    };
    CHECKS.iter().filter_map(finding).collect()
}

/// What steers now, which is not always what was asked for.
fn mechanism(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    if !installed.other_versions.is_empty() {
        return Some(failure(
            format!(
                "hooks of another version steer too: {}",
                installed.other_versions.join(", ")
            ),
            "restart the redirector, or run `culvert-redirector uninstall` of either version, \
             then start it",
        ));
    }
    if let Some(unseen) = &installed.unseen_pods {
        return Some(failure(
            format!("pods are not steered: {unseen}"),
            "docs/cni.md says what this network plug-in needs",
        ));
    }
    let in_force = installed.in_force.unwrap_or(installed.mechanism);
    let is_host_only = installed.hooks_see == Some(HookScope::Host);
    let whose = if is_host_only {
        "the host's connections"
    } else {
        "host and pods"
    };
    Some(match (installed.mechanism, in_force) {
        (Mechanism::None, _) => {
            ok("nothing is steered, as --mechanism none wants it; names are answered")
        }
        (_, Mechanism::None) => failure(
            "nothing steers connections",
            "the redirector's log and /readyz say why",
        ),
        (_, Mechanism::Both) if is_host_only => ok(format!(
            "connect hooks carry {whose}, nftables those of pods"
        )),
        (_, Mechanism::Both) => ok(format!(
            "connect hooks carry {whose}, nftables what hooks do not see"
        )),
        (Mechanism::Both, Mechanism::Ebpf) => warning(
            format!("connect hooks alone carry {whose}"),
            "install the package nftables on this host",
        ),
        (_, Mechanism::Ebpf) => ok(format!("connect hooks carry {whose}")),
        (Mechanism::Nftables, Mechanism::Nftables) => ok(format!("nftables carries {whose}")),
        (Mechanism::Both | Mechanism::Ebpf, Mechanism::Nftables) => {
            let reason = installed
                .fallback
                .as_deref()
                .unwrap_or("the log of the redirector says why");
            warning(
                format!("nftables alone carries {whose}, without connect hooks: {reason}"),
                "nothing, if that is enough: with --mechanism nftables this is what is asked for; \
                 else see docs/cni.md",
            )
        }
    })
}

/// A connection of this process to a VIP.
fn dial(facts: &Facts) -> Option<Judged> {
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

/// Programs of others where ours are attached: each may refuse or change what ours did.
fn neighbours(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|installed| installed.has_hooks())?;
    let others: BTreeSet<u32> = installed
        .neighbours
        .iter()
        .flat_map(|others| others.before.iter().chain(&others.after))
        .copied()
        .collect();
    // Behind `getpeername` hooks a load balancer's are in their right place.
    let connects = || {
        installed
            .neighbours
            .iter()
            .filter(|others| others.program.starts_with("cv_connect"))
    };
    let after: BTreeSet<u32> = connects().flat_map(|others| others.after.clone()).collect();
    let listed = |ids: &BTreeSet<u32>| {
        ids.iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    Some(match (others.is_empty(), after.is_empty()) {
        (true, _) => ok("no other program is attached where ours are"),
        (false, true) => ok(format!(
            "programs of others do their work beside ours: {}",
            listed(&others)
        )),
        (false, false) => {
            let whose: Vec<&str> = connects().map(|others| others.program.as_str()).collect();
            warning(
                format!(
                    "programs of others run after ours ({}): {}",
                    whose.join(", "),
                    listed(&after)
                ),
                "bpftool prog show id N says whose each is; what it makes an edge address of \
                 another one, only nftables sees",
            )
        }
    })
}

/// Tables of others that drop what pods send to this host.
fn firewall(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|installed| installed.steers())?;
    let dropping = &installed.dropping_chains;
    Some(if dropping.is_empty() {
        ok("no table of others drops what pods send to the intercept ports, as far as nft shows")
    } else {
        warning(
            format!(
                "{} drops or rejects what no rule accepts, and none names port 7410",
                dropping.join(", ")
            ),
            "let pods reach TCP 7410-7413 of this host, with ufw: ufw allow proto tcp from \
             10.244.0.0/16 to any port 7410:7413; \
             with firewalld: firewall-cmd --zone=trusted --add-source=10.244.0.0/16; nothing if \
             that is done already (docs/cni.md)",
        )
    })
}

/// Who hands on what the redirector refuses.
fn resolver(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    let redirector = facts
        .resolvers
        .iter()
        .find(|server| installed.dns.iter().any(|dns| dns.ip() == **server));
    Some(match redirector {
        None => ok("no program of this host asks the redirector for names outside of its zone"),
        Some(server) if installed.forwards() => ok(format!(
            "this host asks the redirector, {server}, which forwards"
        )),
        Some(server) => warning(
            format!(
                "/etc/resolv.conf names the redirector, {server}: CoreDNS pods inherit it and \
                 hand on what it refuses"
            ),
            "take it out; give kube-apiserver alone the resolver, and CoreDNS the zone: \
             docs/dns.md",
        ),
    })
}

/// Names for a kube-apiserver that comes by the CONNECT socket.
fn names(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|_| facts.has_connects)?;
    Some(if installed.dns.is_empty() {
        warning(
            "clients use the CONNECT socket, and no redirector here answers names",
            "kube-apiserver resolves a node's name itself before requests to nodes/NODE/proxy \
             (1.22.16 and later): leave out \
             --dns-listen none, or give it --kubelet-preferred-address-types=InternalIP,Hostname",
        )
    } else {
        ok("clients of the CONNECT socket can resolve names by the redirector")
    })
}

/// Limits that nobody is told of where they are met.
fn caps(facts: &Facts) -> Option<Judged> {
    let proxies = facts.cluster.as_ref()?.as_ref().ok()?.proxies;
    Some(match proxies {
        proxies if proxies == MAX_NODES || proxies >= MAX_PROXIES => warning(
            format!(
                "agents are told of {proxies} proxies, the most there can be: those of further \
                 cloud nodes have no tunnels"
            ),
            format!(
                "run proxies on at most {MAX_NODES} cloud nodes where agents come by a NodePort, \
                 on {MAX_PROXIES} otherwise"
            ),
        ),
        proxies => ok(format!("agents are told of {proxies} proxies")),
    })
}

/// What limits did to connections.
fn limits(facts: &Facts) -> Option<Judged> {
    facts.proxy.as_ref().ok()?;
    let in_words = |(outcome, words): &(&str, &str)| {
        let count = facts.limited.get(*outcome)?;
        Some(format!("{count} connections {words} ({outcome})"))
    };
    let met: Vec<String> = LIMITS.iter().filter_map(in_words).collect();
    Some(if met.is_empty() {
        ok("no connection has met a limit of the proxy since it started")
    } else {
        warning(
            format!("since the proxy started: {}", met.join("; ")),
            "docs/metrics.md says whom each limit protects; the proxy's log names the clients",
        )
    })
}

fn cgroup2(facts: &Facts) -> Option<Judged> {
    Some(match mount_point(facts, "cgroup2") {
        Some(mounted) => ok(format!("mounted on {mounted}")),
        None if facts
            .installed
            .as_ref()
            .is_ok_and(|installed| !installed.has_hooks()) =>
        {
            return None;
        }
        // The proxy's pod sees none, and needs none.
        None if facts.installed.as_ref().is_ok_and(Installed::is_attached) => {
            ok("the hooks are attached to one")
        }
        None => failure(
            "no cgroup2 file system is mounted",
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup, or boot with \
             systemd.unified_cgroup_hierarchy=1",
        ),
    })
}

fn bpffs(facts: &Facts) -> Option<Judged> {
    Some(match mount_point(facts, "bpf") {
        Some(mounted) => ok(format!("mounted on {mounted}")),
        None if facts
            .installed
            .as_ref()
            .is_ok_and(|installed| !installed.has_hooks()) =>
        {
            return None;
        }
        None => failure(
            "no BPF file system is mounted: the proxy cannot read what the hooks noted",
            "mount -t bpf bpf /sys/fs/bpf; a pod needs it as a hostPath",
        ),
    })
}

/// Columns of proc_pid_mounts(5): device, mount point, type.
fn mount_point<'a>(facts: &'a Facts, kind: &str) -> Option<&'a str> {
    let columns = facts
        .mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    columns
        .filter(|columns| columns.get(2) == Some(&kind))
        .find_map(|columns| columns.get(1).copied())
}

fn redirector(facts: &Facts) -> Option<Judged> {
    Some(daemon(
        &facts.redirector,
        "culvert-redirector",
        "check --redirector-admin IP:PORT",
    ))
}

fn proxy(facts: &Facts) -> Option<Judged> {
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

fn daemon(daemon: &Answer<Daemon>, name: &str, elsewhere: &str) -> Judged {
    match daemon {
        Err(problem) => failure(
            format!("{name} does not answer: {problem}"),
            format!("start {name} on this host; if it has another --admin-listen: {elsewhere}"),
        ),
        Ok(Daemon { missing, .. }) if missing.is_empty() => ok(format!("{name} runs and is ready")),
        Ok(Daemon { missing, .. }) => failure(
            format!("{name} is not ready: {}", missing.join("; ")),
            format!("its log says more: {name}"),
        ),
    }
}

fn hooks(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|installed| installed.has_hooks())?;
    let lost = installed
        .hooks
        .iter()
        .filter(|hook| hook.link.is_none() || hook.cgroup_id == Some(0));
    let lost: Vec<&str> = lost.map(|hook| hook.program.as_str()).collect();
    Some(match lost.is_empty() && !installed.hooks.is_empty() {
        true if installed.refusal == Some(Refusal::NotPermitted) => ok(format!(
            "{} kernel programs are attached; on this kernel a refused connect fails with EPERM, \
             not EHOSTUNREACH",
            installed.hooks.len()
        )),
        true => ok(format!(
            "{} kernel programs are attached",
            installed.hooks.len()
        )),
        false => failure(
            format!(
                "not attached: {}",
                if lost.is_empty() {
                    "any program".to_owned()
                } else {
                    lost.join(", ")
                }
            ),
            "the redirector attaches them again within 5 s; if not, its log says why, or somebody \
             removes them: \
             culvert-redirector status",
        ),
    })
}

fn nftables(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|installed| installed.has_nftables())?;
    Some(match (&installed.table_problem, installed.table) {
        (Some(problem), _) => failure(
            problem,
            "install the package nftables, or --mechanism ebpf on the redirector",
        ),
        (None, true) => ok("the table culvert is there"),
        (None, false) => failure(
            "there is no table culvert",
            "the redirector makes it again within 5 s; if not, somebody flushes the rule set, as \
             `nft flush ruleset` of a firewall",
        ),
    })
}

fn route(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|installed| installed.steers())?;
    let lost = installed
        .ranges
        .iter()
        .filter(|range| !installed.routes.contains(range));
    let lost: Vec<String> = lost.map(ToString::to_string).collect();
    Some(match lost.is_empty() {
        true if installed.ranges.is_empty() => warning(
            "no VIP range is known yet",
            "the redirector learns them of the proxy: is culvert-proxy ready?",
        ),
        true if installed.routes_to_host => warning(
            "the routes of VIPs lead to this host itself: while nothing steers, its own services \
             answer on every VIP",
            "modprobe bridge, then restart the redirector",
        ),
        true => ok("every VIP range has its route"),
        false => failure(
            format!("no route to {}", lost.join(", ")),
            "the redirector's log says why: this host may use the range itself (--vip4-range and \
             --vip6-range of the proxy), \
             or have no IPv6",
        ),
    })
}

fn dns(facts: &Facts) -> Option<Judged> {
    let installed = facts.installed.as_ref().ok()?;
    let problem = facts
        .dns
        .iter()
        .find_map(|(server, asked)| Some((server, asked.as_ref().err()?)));
    Some(match problem {
        None if facts.dns.is_empty() => warning(
            "the redirector answers no DNS",
            "leave out --dns-listen none, if names are wanted",
        ),
        None => ok(format!("{} is answered", installed.zone)),
        Some((server, problem)) => failure(
            format!("{server}: {problem}"),
            "see --dns-listen and --dns-client of the redirector, and what else has port 53: ss \
             -lup",
        ),
    })
}

/// Whether the proxy listens where the redirector steers to.
fn intercept(facts: &Facts) -> Option<Judged> {
    let installed = facts
        .installed
        .as_ref()
        .ok()
        .filter(|installed| installed.steers())?;
    let deaf = installed
        .intercept_ports
        .iter()
        .filter(|port| !facts.listening.contains(port));
    let deaf: Vec<String> = deaf.map(ToString::to_string).collect();
    Some(if deaf.is_empty() {
        ok("somebody listens on every intercept port")
    } else {
        failure(
            format!(
                "connections are steered to port {}, where nobody listens",
                deaf.join(", ")
            ),
            "start the proxy, or make its --intercept-listen and the redirector's \
             --intercept-port equal",
        )
    })
}

fn tunnels(facts: &Facts) -> Option<Judged> {
    let nodes = facts.nodes.as_ref().ok()?;
    let offline: Vec<&str> = nodes
        .iter()
        .filter(|node| node.tunnels == 0)
        .map(|node| node.name.as_str())
        .collect();
    let fix = |node: &str| format!("culvert-proxy explain {node}");
    Some(match offline.first() {
        None if nodes.is_empty() => warning(
            "there are no nodes",
            "culvert-proxy token create NODE; in a cluster: kubectl label node NODE \
             node-restriction.kubernetes.io/culvert-edge=",
        ),
        None => ok(format!("all {} nodes have tunnels", nodes.len())),
        Some(node) if offline.len() == nodes.len() => failure(
            format!("no node has a tunnel: {}", named(&offline)),
            fix(node),
        ),
        Some(node) => warning(
            format!(
                "{} of {} nodes are offline: {}",
                offline.len(),
                nodes.len(),
                named(&offline)
            ),
            fix(node),
        ),
    })
}

/// Nodes that another tunnel's label makes edge nodes, and ours does not.
fn edge_label(facts: &Facts) -> Option<Judged> {
    let labelled = &facts.cluster.as_ref()?.as_ref().ok()?.other_labels;
    let nodes = facts.nodes.as_ref().ok()?;
    let is_taken = |name: &&str| nodes.iter().any(|node| node.name == *name);
    let not_taken: Vec<&str> = labelled
        .iter()
        .map(String::as_str)
        .filter(|name| !is_taken(name))
        .collect();
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

/// What kubelets may decide about all hosts of the cloud.
fn claims(facts: &Facts) -> Option<Judged> {
    facts.cluster.as_ref()?;
    let claims = facts.claims.as_ref().ok()?;
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

fn addresses(facts: &Facts) -> Option<Judged> {
    let nodes = facts.nodes.as_ref().ok()?;
    let mut reasons: Vec<&str> = nodes
        .iter()
        .flat_map(|node| &node.reasons)
        .map(String::as_str)
        .collect();
    reasons.retain(|reason| !reason.is_empty());
    reasons.sort_unstable();
    reasons.dedup();
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
            named(&reasons),
            "reach these nodes by name, kube-apiserver by \
             --kubelet-preferred-address-types=Hostname,InternalIP; what is an edge's and \
             what the cloud's is said by --edge-range, --service-range, --pod-range and --protect \
             of the proxy",
        )
    })
}

fn left_out(facts: &Facts) -> Option<Judged> {
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

fn ports(facts: &Facts) -> Option<Judged> {
    if let Some(Ok(cluster)) = &facts.cluster
        && let Some(problem) = cluster.ports_problems.first()
    {
        return Some(failure(
            problem,
            "fix the ConfigMap: until then the last good ports are used",
        ));
    }
    let nodes = facts.nodes.as_ref().ok()?;
    let mut forbidden: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    let of = |node: &'_ NodeStatus| node.forbidden_ports.clone();
    for node in nodes {
        for port in of(node) {
            forbidden.entry(port).or_default().push(&node.name);
        }
    }
    let in_words = |(port, nodes): (&u32, &Vec<&str>)| format!("{port} ({})", named(nodes));
    let ports: Vec<String> = forbidden.keys().map(u32::to_string).collect();
    Some(if ports.is_empty() {
        ok("agents dial every port that is steered to them")
    } else {
        warning(
            format!(
                "steered, but not dialled by agents: {}",
                forbidden
                    .iter()
                    .map(in_words)
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            format!(
                "--port {} on these agents, besides those that they have, or take the ports away",
                ports.join(",")
            ),
        )
    })
}

fn certificates(facts: &Facts) -> Option<Judged> {
    let certificates = facts.certificates.as_ref().ok()?;
    let ends = |certificate: &CertificateStatus| UnixTime::from_seconds(certificate.not_after);
    let certificate = certificates
        .iter()
        .min_by_key(|certificate| certificate.not_after)?;
    let left = ends(certificate).since(facts.now);
    let found = format!(
        "that of {} ends at {}",
        certificate.owner,
        ends(certificate)
    );
    let own = certificates.first().map(|own| own.not_after) == Some(certificate.not_after);
    let soon = if own { SOON } else { SOON_FOR_AN_AUTHORITY };
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

fn clock(facts: &Facts) -> Option<Judged> {
    let fix = "set the clock, and keep it right: timedatectl set-ntp true";
    let begins = facts
        .certificates
        .iter()
        .flatten()
        .map(|certificate| UnixTime::from_seconds(certificate.not_before))
        .max();
    if let Some(begins) = begins.filter(|begins| *begins > facts.now) {
        let found = format!(
            "it is {} here, and a certificate in use begins at {begins} only",
            facts.now
        );
        return Some(failure(found, fix));
    }
    let Some(server) = facts
        .cluster
        .as_ref()
        .and_then(|cluster| cluster.as_ref().ok()?.time)
    else {
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

fn rbac(facts: &Facts) -> Option<Judged> {
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

/// The first few, and how many more.
fn named(names: &[&str]) -> String {
    let shown = names
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
