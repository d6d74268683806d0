use std::collections::{BTreeMap, BTreeSet};

use culvert_api::installed::{
    Hook, HookScope, Installed, MarkUser, Marks, Mechanism, Neighbours, SteeredPackets,
};
use culvert_api::proto::control::{CertificateStatus, NodeStatus, StreamStatus};
use culvert_proxy_cluster::{ClusterFacts, PortsFacts, UnreadPorts};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::reported::Claims;

use super::super::conntrack::Conntrack;
use super::super::facts::{Dialled, LeftOut};
use super::super::finding::Verdict;
use super::super::local_ports::LocalPorts;
use super::host::{cgroup2, names, resolver};
use super::*;

const NOW: u64 = 1_700_000_000;
const DAY: u64 = 24 * 3600;

/// A host on which all is well.
fn good() -> Facts {
    let hook = |program: &str| Hook {
        program: program.into(),
        link: Some(1),
        cgroup_id: Some(1),
        program_id: None,
    };
    let certificate = |owner: &str, days| CertificateStatus {
        owner: owner.into(),
        not_before: NOW - 60,
        not_after: NOW + days * DAY,
    };
    Facts {
        mounts: "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n".into(),
        listening: BTreeSet::from([7400, 7410, 7413]),
        local_ports: LocalPorts {
            range: "32768\t60999\n".into(),
            reserved: "\n".into(),
        },
        conntrack: Conntrack {
            count: "120\n".into(),
            max: "262144\n".into(),
            stat: String::new(),
        },
        redirector: Some(Ok(Daemon {
            missing: Vec::new(),
            remarks: Vec::new(),
        })),
        installed: Ok(Installed {
            mechanism: Mechanism::Both,
            hooks: vec![hook("cv_connect4"), hook("cv_sockops")],
            table: true,
            table_problem: None,
            ranges: vec!["198.18.0.0/15".parse().unwrap()],
            routes: vec!["198.18.0.0/15".parse().unwrap()],
            intercept_ports: vec![7410, 7413],
            dns: vec!["10.0.0.1:53".parse().unwrap()],
            zone: "edge.internal".into(),
            in_force: Some(Mechanism::Both),
            hooks_see: Some(HookScope::All),
            reserved_for: Some(0),
            marks: Some(Marks {
                exempt: 0x1000,
                used: 0xc000,
                ..Marks::default()
            }),
            ..Installed::default()
        }),
        dns: vec![("10.0.0.1:53".parse().unwrap(), Ok(()))],
        proxy: Ok(Daemon {
            missing: Vec::new(),
            remarks: Vec::new(),
        }),
        nodes: Ok(vec![node("edge-1", 2), node("edge-2", 2)]),
        certificates: Ok(vec![
            certificate("this proxy", 20),
            certificate("an authority of agents", 3000),
        ]),
        dial: Some(Dialled {
            node: "edge-1".into(),
            vip: "198.18.0.1".parse().unwrap(),
            way: Ok("ebpf".into()),
        }),
        claims: Ok(Claims {
            edge_ranges: vec!["10.0.3.0/24".parse().unwrap()],
            annotations: false,
            labels_of_kubelets: Vec::new(),
        }),
        left_out: Ok(Vec::new()),
        has_connects: true,
        limited: BTreeMap::new(),
        idle_streams: Ok(vec![StreamStatus::default()]),
        capped: BTreeMap::new(),
        resolvers: vec!["10.0.0.53".parse().unwrap()],
        now: UnixTime::from_seconds(NOW),
        cluster: Some(Ok(ClusterFacts {
            lacking: Vec::new(),
            time: Some(UnixTime::from_seconds(NOW + 1)),
            ports: PortsFacts::default(),
            proxies: 3,
            other_labels: vec!["edge-1".into()],
            former_clouds: Vec::new(),
        })),
    }
}

fn node(name: &str, tunnels: u32) -> NodeStatus {
    NodeStatus {
        name: name.into(),
        tunnels,
        ..NodeStatus::default()
    }
}

fn change<T>(part: &mut Answer<T>, edit: impl FnOnce(&mut T)) {
    edit(part.as_mut().unwrap());
}

/// The one check that is not content with the facts.
fn only(edit: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = good();
    edit(&mut facts);
    let mut findings = findings(&facts);
    findings.retain(|finding| finding.verdict != Verdict::Ok);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

#[test]
fn a_good_host_has_no_findings_and_every_check_has_its_say() {
    let findings = findings(&good());
    assert_eq!(findings.len(), CHECKS.len());
    for finding in findings {
        assert_eq!(
            (finding.verdict, finding.fix.as_str()),
            (Verdict::Ok, ""),
            "{finding:?}"
        );
    }
}

#[test]
fn a_missing_cgroup2_is_a_fault_only_where_no_hook_is_attached() {
    let mut facts = good();
    facts.mounts = "bpf /sys/fs/bpf bpf rw 0 0".into();
    assert_eq!(
        cgroup2(&facts).unwrap().0,
        Verdict::Ok,
        "as in the proxy's pod"
    );
    change(&mut facts.installed, |installed| installed.hooks.clear());
    assert_eq!(cgroup2(&facts).unwrap().0, Verdict::Failure);
}

/// The check, its verdict, parts of what it finds and of its fix, and the fault.
type Fault = (
    &'static str,
    Verdict,
    &'static str,
    &'static str,
    fn(&mut Facts),
);
/// What is wrong, with what is found and what fixes it.
const FAULTS: [Fault; 56] = [
    (
        "mechanism",
        Verdict::Warning,
        "nftables alone carries host and pods, without connect hooks: no CAP_BPF",
        "docs/cni.md",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.in_force = Some(Mechanism::Nftables);
                installed.fallback = Some("no CAP_BPF".into());
            });
        },
    ),
    (
        "mechanism",
        Verdict::Warning,
        "connect hooks alone",
        "package nftables",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.in_force = Some(Mechanism::Ebpf)
            });
        },
    ),
    (
        "mechanism",
        Verdict::Failure,
        "nothing steers",
        "log",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.in_force = Some(Mechanism::None)
            });
        },
    ),
    (
        "mechanism",
        Verdict::Failure,
        "pods are not steered: Calico",
        "docs/cni.md",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.unseen_pods = Some("Calico's eBPF data plane".into())
            });
        },
    ),
    (
        "mechanism",
        Verdict::Failure,
        "culvert/v2/links/cv_connect4",
        "uninstall",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed
                    .other_versions
                    .push("culvert/v2/links/cv_connect4".into())
            });
        },
    ),
    (
        "neighbours",
        Verdict::Warning,
        "after ours (cv_connect4): 12",
        "bpftool",
        |facts| {
            let others = Neighbours {
                program: "cv_connect4".into(),
                before: vec![11],
                after: vec![12],
            };
            change(&mut facts.installed, |installed| {
                installed.neighbours.push(others)
            });
        },
    ),
    (
        "nftables",
        Verdict::Warning,
        "inet vpc pre puts connections into zones",
        "ct zone",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.zoning_chains.push("inet vpc pre".into())
            });
        },
    ),
    (
        "firewall",
        Verdict::Warning,
        "3 of 12 first packets of connections that nftables steered, perhaps by ip filter INPUT",
        "ufw allow",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.steered = Some(SteeredPackets {
                    begun: 12,
                    admitted: 9,
                });
                installed.dropping_chains.push("ip filter INPUT".into())
            });
        },
    ),
    (
        "firewall",
        Verdict::Warning,
        "2 of 4 first packets of connections that the connect hooks steered, perhaps by inet egress",
        "accept that",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.hooked = Some(SteeredPackets {
                    begun: 4,
                    admitted: 2,
                });
                installed.owner_chains.push("inet egress out".into())
            });
        },
    ),
    (
        "marks",
        Verdict::Warning,
        "ip mangle KUBE-MARK-DROP (kube-proxy, 0x8000)",
        "--mark 0x1000 on the redirector",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.marks = Some(Marks {
                    exempt: 0x8000,
                    used: 0xc000,
                    users: vec![MarkUser {
                        place: "ip mangle KUBE-MARK-DROP".into(),
                        bits: 0x8000,
                    }],
                    problems: Vec::new(),
                });
            });
        },
    ),
    (
        "conntrack",
        Verdict::Failure,
        "is full: 262144 of 262144 entries",
        "nf_conntrack_max",
        |facts| {
            facts.conntrack.count = "262144\n".into();
        },
    ),
    (
        "conntrack",
        Verdict::Warning,
        "nearly full: 235930 of 262144",
        "nf_conntrack_max",
        |facts| {
            facts.conntrack.count = "235930\n".into();
        },
    ),
    (
        "guard",
        Verdict::Warning,
        "1 packet of other hosts to the intercept ports dropped; a network card is a port of br0",
        "--guard-allow",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.guard_drops = 1;
                installed.outer_bridges.push("br0".into());
            });
        },
    ),
    (
        "guard",
        Verdict::Warning,
        "2 packets to edge nodes refused; a network card is a port of br0",
        "--guard-allow",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.refused_of_bridges = 2;
                installed.outer_bridges.push("br0".into());
            });
        },
    ),
    (
        "resolver",
        Verdict::Warning,
        "10.0.0.1: CoreDNS",
        "docs/dns.md",
        |facts| {
            facts.resolvers.insert(0, "10.0.0.1".parse().unwrap());
        },
    ),
    (
        "dial",
        Verdict::Failure,
        "198.18.0.1 (edge-1) did not come to the proxy: refused",
        "explain 198.18.0.1",
        |facts| {
            facts.dial.as_mut().unwrap().way = Err("refused".into());
        },
    ),
    (
        "dial",
        Verdict::Warning,
        "past the connect hooks",
        "--cgroup",
        |facts| {
            facts.dial.as_mut().unwrap().way = Ok("nftables".into());
        },
    ),
    (
        "caps",
        Verdict::Warning,
        "it names 3 and leaves out 44",
        "--advertise",
        |facts| {
            facts.capped.insert("agent_config".into(), 44);
        },
    ),
    (
        "caps",
        Verdict::Warning,
        "it names 256 and leaves out 0",
        "--advertise",
        |facts| {
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.proxies = 256
            });
        },
    ),
    (
        "caps",
        Verdict::Warning,
        "2 have Leases beyond the cap of 256",
        "fewer cloud nodes",
        |facts| {
            facts.capped.insert("leases".into(), 2);
        },
    ),
    (
        "limits",
        Verdict::Warning,
        "9 connections of agents refused",
        "metrics.md",
        |facts| {
            facts.limited.insert("busy".into(), 9);
        },
    ),
    (
        "limits",
        Verdict::Warning,
        "7 connections refused, for their client had its share",
        "metrics.md",
        |facts| {
            facts.limited.insert("client_share".into(), 7);
        },
    ),
    (
        "streams",
        Verdict::Warning,
        "2 connections without an answer",
        "culvert streams",
        |facts| {
            let waits = StreamStatus {
                node: "edge-2".into(),
                destination: "10.0.3.8:9100".into(),
                waits: true,
                ..StreamStatus::default()
            };
            facts.idle_streams = Ok(vec![waits; 2]);
        },
    ),
    (
        "bpffs",
        Verdict::Failure,
        "no BPF file system",
        "mount -t bpf",
        |facts| {
            facts.mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0".into();
        },
    ),
    (
        "proxy",
        Verdict::Warning,
        "ready, but revocations: not shared",
        "log",
        |facts| {
            let remark = "revocations: not shared with the other proxies: write the ConfigMap";
            change(&mut facts.proxy, |daemon| {
                daemon.remarks.push(remark.into())
            });
        },
    ),
    (
        "redirector",
        Verdict::Failure,
        "directory: connect",
        "log",
        |facts| {
            change(facts.redirector.as_mut().unwrap(), |daemon| {
                daemon.missing.push("directory: connect".into())
            });
        },
    ),
    (
        "own networks",
        Verdict::Warning,
        "10.0.3.7 of edge-1",
        "--steer-own-network",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed
                    .withheld
                    .push("10.0.3.7 of edge-1: it is in 10.0.3.0/24".into());
            });
        },
    ),
    (
        "drift",
        Verdict::Warning,
        "routes 3",
        "deploy/network",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.repairs.insert("routes".into(), 3);
            });
        },
    ),
    ("hooks", Verdict::Failure, "cv_sockops", "status", |facts| {
        change(&mut facts.installed, |installed| {
            installed.hooks[1].link = None
        });
    }),
    (
        "hooks",
        Verdict::Failure,
        "cv_connect4",
        "status",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.hooks[0].cgroup_id = Some(0)
            });
        },
    ),
    (
        "nftables",
        Verdict::Failure,
        "no table culvert",
        "flush",
        |facts| {
            change(&mut facts.installed, |installed| installed.table = false);
        },
    ),
    (
        "route",
        Verdict::Warning,
        "its own services answer",
        "modprobe bridge",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.routes_to_host = true
            });
        },
    ),
    (
        "route",
        Verdict::Failure,
        "198.18.0.0/15",
        "--vip4-range",
        |facts| {
            change(&mut facts.installed, |installed| installed.routes.clear());
        },
    ),
    (
        "dns",
        Verdict::Failure,
        "10.0.0.1:53: no answer",
        "--dns-listen",
        |facts| {
            facts.dns[0].1 = Err("no answer".into());
        },
    ),
    (
        "intercept",
        Verdict::Failure,
        "7413",
        "--intercept-listen",
        |facts| {
            facts.listening.remove(&7413);
        },
    ),
    (
        "reserved ports",
        Verdict::Warning,
        "every user of this host may listen on the intercept ports and answer for edge nodes: Cilium",
        "trusted",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.unreserved = Some("Cilium is on this host".into());
            });
        },
    ),
    (
        "reserved ports",
        Verdict::Warning,
        "3 attempts of others than root and user 990",
        "EPERM",
        |facts| {
            change(&mut facts.installed, |installed| {
                installed.reserved_for = Some(990);
                installed.refused_binds = 3;
            });
        },
    ),
    (
        "tunnels",
        Verdict::Warning,
        "1 of 2 nodes offline: edge-2",
        "why edge-2",
        |facts| {
            change(&mut facts.nodes, |nodes| nodes[1].tunnels = 0);
        },
    ),
    (
        "tunnels",
        Verdict::Failure,
        "no node has a tunnel",
        "why edge-1",
        |facts| {
            change(&mut facts.nodes, |nodes| {
                nodes.iter_mut().for_each(|node| node.tunnels = 0)
            });
        },
    ),
    (
        "tunnels",
        Verdict::Warning,
        "no nodes",
        "culvert-edge",
        |facts| {
            facts.nodes = Ok(Vec::new());
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.other_labels.clear()
            });
        },
    ),
    (
        "edge label",
        Verdict::Warning,
        "not for this one: worker-1",
        "culvert-edge=",
        |facts| {
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.other_labels.push("worker-1".into())
            });
        },
    ),
    (
        "cloud label",
        Verdict::Warning,
        "worker-1",
        "node-restriction.kubernetes.io/culvert-cloud",
        |facts| {
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.former_clouds.push("worker-1".into())
            });
        },
    ),
    (
        "claims",
        Verdict::Warning,
        "culvert.dev/edge",
        "culvert-edge=",
        |facts| {
            change(&mut facts.claims, |claims| {
                claims.labels_of_kubelets.push("culvert.dev/edge".into())
            });
        },
    ),
    (
        "claims",
        Verdict::Warning,
        "no --edge-range",
        "install-kubernetes.md",
        |facts| {
            change(&mut facts.claims, |claims| claims.edge_ranges.clear());
        },
    ),
    (
        "claims",
        Verdict::Warning,
        "trusts their annotations",
        "culvert-ports",
        |facts| {
            change(&mut facts.claims, |claims| claims.annotations = true);
        },
    ),
    (
        "addresses",
        Verdict::Warning,
        "edge-1 and edge-2",
        "by name",
        |facts| {
            change(&mut facts.nodes, |nodes| {
                nodes[0].reasons.push("shared by edge-1 and edge-2".into())
            });
        },
    ),
    (
        "addresses",
        Verdict::Failure,
        "are unknown",
        "--edge-range",
        |facts| {
            let reason = "the ranges of Services and pods are unknown: --edge-range";
            change(&mut facts.nodes, |nodes| {
                nodes[0].reasons.push(reason.into())
            });
        },
    ),
    (
        "left out",
        Verdict::Warning,
        "worker-1: in the VIP range",
        "Node",
        |facts| {
            let left_out = LeftOut {
                node: "worker-1".into(),
                reason: "in the VIP range".into(),
            };
            change(&mut facts.left_out, |nodes| nodes.push(left_out));
        },
    ),
    (
        "ports",
        Verdict::Warning,
        "8080 (edge-2)",
        "--port 8080",
        |facts| {
            change(&mut facts.nodes, |nodes| {
                nodes[1].forbidden_ports.push(8080)
            });
        },
    ),
    (
        "ports",
        Verdict::Warning,
        "no ConfigMap culvert-system/culvert-ports",
        "kubectl apply -k",
        |facts| {
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.ports.missing_in = Some("culvert-system".into());
            });
        },
    ),
    (
        "ports",
        Verdict::Warning,
        "agents do not read: 9051, 9052",
        "kubectl patch x",
        |facts| {
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.ports.unread = Some(UnreadPorts {
                    ports: [9051, 9052].into(),
                    command: "kubectl patch x".into(),
                });
            });
        },
    ),
    (
        "certificates",
        Verdict::Failure,
        "past",
        "--tls-cert",
        |facts| {
            change(&mut facts.certificates, |certificates| {
                certificates[0].not_after = NOW - 1
            });
        },
    ),
    (
        "certificates",
        Verdict::Warning,
        "authority",
        "culvert-ca",
        |facts| {
            change(&mut facts.certificates, |certificates| {
                certificates[1].not_after = NOW + 10 * DAY
            });
        },
    ),
    ("clock", Verdict::Failure, "begins at", "ntp", |facts| {
        change(&mut facts.certificates, |certificates| {
            certificates[0].not_before = NOW + 1
        });
    }),
    ("clock", Verdict::Failure, "600 s", "ntp", |facts| {
        facts.now = UnixTime::from_seconds(NOW + 601)
    }),
    (
        "rbac",
        Verdict::Failure,
        "patch events",
        "kubectl apply",
        |facts| {
            change(facts.cluster.as_mut().unwrap(), |cluster| {
                cluster.lacking.push("patch events in default".into())
            });
        },
    ),
];

#[test]
fn each_fault_is_found_by_its_own_check_with_what_and_the_fix() {
    for (check, verdict, found, fix, edit) in FAULTS {
        let finding = only(edit);
        assert_eq!(
            (finding.check, finding.verdict),
            (check, verdict),
            "{finding:?}"
        );
        assert!(
            finding.found.contains(found) && finding.fix.contains(fix),
            "{finding:?}"
        );
    }
}

#[test]
fn what_a_stopped_program_would_have_said_is_not_guessed() {
    let stopped = |edit: fn(&mut Facts)| {
        let mut facts = good();
        edit(&mut facts);
        let bad = findings(&facts)
            .into_iter()
            .filter(|finding| finding.verdict != Verdict::Ok);
        bad.map(|finding| finding.check).collect::<Vec<_>>()
    };
    let without_redirector = stopped(|facts| {
        facts.redirector = Some(Err("connection refused".into()));
        facts.installed = Err("connection refused".into());
        facts.dns.clear();
        facts.dial = None;
    });
    assert_eq!(without_redirector, ["redirector"]);
    let of_proxies_only = stopped(|facts| {
        facts.mounts.clear();
        facts.redirector = None;
        facts.installed = Err("there is no redirector".into());
        facts.dns.clear();
        facts.dial = None;
    });
    assert!(of_proxies_only.is_empty(), "{of_proxies_only:?}");
    let without_proxy = stopped(|facts| {
        facts.proxy = Err("connection refused".into());
        facts.nodes = Err("no answer on the control socket".into());
        facts.certificates = Err("the proxy does not answer".into());
        facts.claims = Err("connection refused".into());
        facts.left_out = Err("connection refused".into());
        facts.listening.clear();
        facts.dial = None;
    });
    assert_eq!(without_proxy, ["proxy", "intercept"]);
    assert_eq!(
        stopped(|facts| facts.cluster = Some(Err("connection refused".into()))),
        ["rbac"]
    );
}

#[test]
fn nftables_alone_needs_neither_hooks_nor_their_file_systems() {
    let mut facts = good();
    facts.mounts = String::new();
    change(&mut facts.installed, |installed| {
        installed.mechanism = Mechanism::Nftables;
        installed.hooks.iter_mut().for_each(|hook| hook.link = None);
    });
    assert!(
        findings(&facts)
            .iter()
            .all(|finding| finding.verdict == Verdict::Ok),
        "{:#?}",
        findings(&facts)
    );
}

#[test]
fn what_is_in_force_decides_and_not_the_kernel_s_version() {
    let mut facts = good();
    change(&mut facts.installed, |installed| {
        installed.in_force = Some(Mechanism::Nftables);
        installed.fallback = Some("load cv_connect4: the kernel refuses it".into());
        installed.hooks.iter_mut().for_each(|hook| hook.link = None);
    });
    change(facts.redirector.as_mut().unwrap(), |daemon| {
        daemon
            .remarks
            .push("hooks: nftables alone steers connections".into())
    });
    facts.mounts = String::new();
    facts.dial.as_mut().unwrap().way = Ok("nftables".into());
    let bad: Vec<_> = findings(&facts)
        .into_iter()
        .filter(|finding| finding.verdict != Verdict::Ok)
        .collect();
    assert_eq!(
        bad.iter().map(|finding| finding.check).collect::<Vec<_>>(),
        ["mechanism"],
        "one finding for one fact"
    );
}

#[test]
fn names_alone_are_no_fault_but_connect_clients_need_them() {
    let mut facts = good();
    change(&mut facts.installed, |installed| {
        *installed = Installed {
            mechanism: Mechanism::None,
            in_force: Some(Mechanism::None),
            dns: installed.dns.clone(),
            ..Installed::default()
        };
    });
    facts.dial = None;
    assert!(
        findings(&facts)
            .iter()
            .all(|finding| finding.verdict == Verdict::Ok),
        "{:#?}",
        findings(&facts)
    );
    change(&mut facts.installed, |installed| installed.dns.clear());
    facts.dns.clear();
    let (verdict, found, fix) = names(&facts).unwrap();
    assert_eq!(verdict, Verdict::Warning);
    assert!(
        found.contains("CONNECT") && fix.contains("InternalIP,Hostname"),
        "{found}: {fix}"
    );
    facts.has_connects = false;
    assert_eq!(names(&facts), None, "nobody asks");
}

#[test]
fn a_redirector_that_forwards_may_be_the_host_s_resolver() {
    let mut facts = good();
    facts.resolvers.insert(0, "10.0.0.1".parse().unwrap());
    change(&mut facts.installed, |installed| {
        installed.forward.push("10.0.0.53:53".parse().unwrap())
    });
    assert_eq!(resolver(&facts).unwrap().0, Verdict::Ok);
}

#[test]
fn a_broken_config_map_of_ports_is_named() {
    let finding = only(|facts| {
        change(facts.cluster.as_mut().unwrap(), |cluster| {
            cluster
                .ports
                .problems
                .push("ports: \"x\" is not a port".into())
        });
    });
    assert_eq!(
        (finding.check, finding.verdict),
        ("ports", Verdict::Failure)
    );
    assert!(finding.found.contains("\"x\" is not a port"));
}

#[test]
fn a_table_without_its_keeper_is_there_and_the_reason_is_told() {
    let mut facts = good();
    change(&mut facts.installed, |installed| {
        installed.keeper_problem = Some("nft ended".into());
    });
    let mut findings = findings(&facts);
    findings.retain(|finding| finding.check == "nftables");
    assert_eq!(findings[0].verdict, Verdict::Ok);
    assert!(findings[0].found.contains("nft ended"), "{findings:?}");
}

#[test]
fn one_node_is_no_plural() {
    let mut facts = good();
    facts.nodes = Ok(vec![node("edge-1", 2)]);
    let mut findings = findings(&facts);
    findings.retain(|finding| finding.check == "tunnels");
    assert!(!findings[0].found.contains("nodes"), "{findings:?}");
}

#[test]
fn long_lists_are_cut() {
    let names: Vec<String> = (0..1000).map(|number| format!("edge-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        named(&names),
        "edge-0, edge-1, edge-2, edge-3, edge-4 and 995 more"
    );
}

#[test]
fn ports_that_other_programs_may_get_are_a_warning() {
    let found = only(|facts| facts.local_ports.range = "1024 65535".into());
    assert_eq!(
        (found.check, found.verdict),
        ("local ports", Verdict::Warning)
    );
    assert!(found.found.contains("7400"), "{}", found.found);
    assert!(
        found.fix.contains("ip_local_reserved_ports=7400-"),
        "{}",
        found.fix
    );
}

#[test]
fn two_agents_with_one_certificate_are_named() {
    let found = only(|facts| {
        change(&mut facts.nodes, |nodes| {
            nodes[0].misplaced = "2 agents have its certificate".into();
            nodes[0].misplaced_fix = "join anew".into();
        });
    });
    assert_eq!(found.check, "agents");
    assert!(found.found.contains("edge-1: 2 agents"), "{}", found.found);
    assert_eq!(found.fix, "join anew");
}

#[test]
fn nodes_whose_large_packets_are_lost_are_named() {
    let found = only(|facts| {
        change(&mut facts.nodes, |nodes| nodes[0].large_packets_lost = true);
    });
    assert_eq!(found.verdict, Verdict::Warning);
    assert!(
        found.found.contains("large packets of edge-1"),
        "{}",
        found.found
    );
    assert!(found.fix.contains("--tunnel-mss"), "{}", found.fix);
}
