//! What operators are told, case by case.

use culvert_proxy_streams::copies::AgentRun;
use culvert_proxy_streams::history::Event;
use culvert_proxy_streams::live::Streams;
use culvert_tunnel::proto::tunnel::{Allowed, DialCode, TunnelEnd};
use culvert_tunnel::{DialFailure, OpenError};
use futures_util::FutureExt;

use culvert_api::NodeName;

use super::*;

fn node(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// edge-1 has an address of its own; edge-2 and edge-3 share one.
fn explainer() -> (tempfile::TempDir, Explainer) {
    let state = tempfile::tempdir().unwrap();
    let directory = Directory::for_tests(state.path(), &[]);
    for (name, address) in [
        ("edge-1", "10.0.3.7"),
        ("edge-2", "192.168.1.10"),
        ("edge-3", "192.168.1.10"),
    ] {
        directory
            .editor()
            .put(&node(name), vec![address.parse().unwrap()], vec![9100])
            .unwrap();
    }
    let metrics = culvert_proxy_core::metrics::Metrics::default();
    let registry = Registry::new(directory.clone(), metrics.clone());
    let router = Router::new(
        directory.clone(),
        registry.clone(),
        Streams::for_tests(metrics.clone()),
        metrics,
    );
    (state, Explainer::new(directory, registry, router))
}

/// The same with a tunnel to the target's node.
fn online(explainer: &Explainer, text: &str) -> Facts {
    let described = DescribeResponse {
        version: "0.1.0".into(),
        addresses: vec!["10.0.3.7".into()],
        allowed: Some(Allowed {
            ports: vec![9100, 22],
            ..Allowed::default()
        }),
        ..DescribeResponse::default()
    };
    let tunnel = TunnelFacts {
        agent: "198.51.100.1:40000".parse().unwrap(),
        described,
        up: Duration::from_secs(200),
        round_trip: Some(Duration::from_micros(20_400)),
        streams: 3,
        silent: false,
    };
    Facts {
        tunnels: vec![tunnel],
        ..facts(explainer, text)
    }
}

fn facts(explainer: &Explainer, text: &str) -> Facts {
    let query: Query = text.parse().unwrap();
    let route = explainer.router.route(destination(&query));
    let facts = explainer.facts(query, route).now_or_never();
    facts.expect("there is no agent to wait for")
}

fn text(explanation: &Explanation) -> String {
    let line = |line: &Line| format!("{}: {}\n", line.subject, line.text);
    explanation.lines.iter().map(line).collect()
}

#[track_caller]
fn says(explanation: &Explanation, reachable: bool, lines: &[&str]) {
    let text = text(explanation);
    for line in lines {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    assert_eq!(explanation.reachable, reachable, "{text}");
    let is_broken = explanation.lines.iter().any(|line| line.broken);
    assert_eq!(is_broken, !reachable, "a line says where it ends: {text}");
}

#[test]
fn a_node_that_is_online_is_shown_from_the_name_to_the_dial() {
    let (_state, explainer) = explainer();
    for (asked, directory) in [
        ("10.0.3.7:9100", "directory: address of edge-1\n"),
        ("198.18.0.1:9100", "directory: VIP of edge-1; every port\n"),
        (
            "edge-1.edge.internal:9100",
            "directory: name of edge-1; every port of its VIPs\n",
        ),
    ] {
        let explanation = words::explanation(&online(&explainer, asked));
        says(
            &explanation,
            true,
            &[
                directory,
                "steering: steered\n",
                "node: edge-1: 10.0.3.7; VIPs 198.18.0.1, fd00:c::1; ports 9100\n",
                "dns: edge-1 and edge-1.edge.internal: A 198.18.0.1, AAAA fd00:c::1 ",
                "tunnel: up for 3 min, round trip 20.4 ms, streams 3, agent 0.1.0 from \
                 198.51.100.1:40000\n",
                "ended: no tunnel has ended since the proxy started",
                "agent: dials 10.0.3.7:9100",
            ],
        );
        assert!(!text(&explanation).contains("fix:"));
    }
}

#[test]
fn a_port_that_is_not_steered_or_not_allowed_comes_with_the_fix() {
    let (_state, explainer) = explainer();
    says(
        &words::explanation(&online(&explainer, "10.0.3.7:22")),
        false,
        &[
            "steering: passes: steered on ports 9100 only\n",
            "agent: dials 10.0.3.7:22\n",
            "fix: dial edge-1.edge.internal:22, or have the port steered: `culvert token \
             create edge-1 --port 9100,22`; in a cluster: ConfigMap culvert-ports",
        ],
    );
    says(
        &words::explanation(&online(&explainer, "edge-1:8080")),
        false,
        &[
            "agent: refuses to dial 10.0.3.7:8080: it allows ports 22, 9100\n",
            "fix: `--port 8080` on the agent of edge-1",
        ],
    );
}

#[tokio::test]
async fn an_offline_node_is_told_with_what_was_last_seen_of_its_agent() {
    let (_state, explainer) = explainer();
    let never = explainer.explain("edge-1", Dial::No).await.unwrap();
    says(
        &never,
        false,
        &[
            "EHOSTUNREACH",
            "tunnel: none: edge-1 is offline",
            "ended: no tunnel has ended",
            "fix: on edge-1: is culvert-agent",
        ],
    );
    explainer.registry.history().record_end(
        &node("edge-1"),
        "nothing came from the peer for 18 s".into(),
    );
    explainer
        .registry
        .history()
        .record_refusal(&node("edge-1"), "the certificate of edge-1 expired".into());
    let refused = explainer.explain("10.0.3.7:9100", Dial::Yes).await.unwrap();
    says(
        &refused,
        false,
        &[
            "nothing came from the peer for 18 s",
            "refused: its agent was not taken at",
            "expired",
            "dial: offline: edge-1 is",
        ],
    );
    let mut facts = facts(&explainer, "edge-1");
    let event = |at, reason: &str| {
        Some(Event {
            at: UnixTime::from_seconds(at),
            reason: reason.into(),
        })
    };
    facts.past = LastEvents {
        ended: event(9, "silent"),
        refused: event(8, "expired"),
    };
    assert!(
        !text(&words::explanation(&facts)).contains("expired"),
        "it was taken after that"
    );
}

#[test]
fn what_the_agent_knows_of_its_last_tunnel_is_told() {
    let (_state, explainer) = explainer();
    let mut facts = online(&explainer, "edge-1:9100");
    let fix = "give the agent of edge-1 --tunnel-mss";
    assert!(!text(&words::explanation(&facts)).contains(fix));
    let described = &mut facts.tunnels[0].described;
    described.last_end = TunnelEnd::LargePacketsLost.into();
    says(
        &words::explanation(&facts),
        true,
        &["ended: the agent says", "not one large one", fix],
    );
}

#[tokio::test]
async fn what_leads_to_no_node_is_explained_too() {
    let (_state, explainer) = explainer();
    for (asked, lines) in [
        (
            "192.168.1.10:9100",
            &[
                "directory: address of several nodes (edge-2, edge-3): the proxy refuses it; dial \
                 them by name",
                "steering: steered\n",
                "node: edge-2: 192.168.1.10 (shared)",
                "fix: dial edge-2.edge.internal or edge-3.edge.internal",
            ][..],
        ),
        (
            "192.168.1.10:22",
            &["steering: passes: steered on ports 9100 only"],
        ),
        (
            "192.0.2.1",
            &[
                "directory: not an edge node's address",
                "fix: if a node has it: `culvert token create",
            ],
        ),
        ("198.18.9.9", &["in the range of VIPs, but no node's"]),
        (
            "edge-9.edge.internal:80",
            &["no edge node is named", "dns: NXDOMAIN"],
        ),
    ] {
        says(
            &explainer.explain(asked, Dial::No).await.unwrap(),
            false,
            lines,
        );
    }
    for (asked, no_node) in [
        ("edge-9", true),
        ("edge-9.edge.internal:80", true),
        ("localhost", true),
        ("edge-1", false),
        ("192.0.2.1", false),
        ("198.18.9.9", false),
    ] {
        let explained = explainer.explain(asked, Dial::No).await.unwrap();
        assert_eq!(explained.no_node, no_node, "{asked}");
    }
    let error = explainer.explain("edge-1", Dial::Yes).await.unwrap_err();
    assert!(error.to_string().contains("edge-1:9100"), "{error}");
    assert!(explainer.explain("a b", Dial::No).await.is_err());
}

#[tokio::test]
async fn a_name_that_means_something_else_is_explained_with_the_one_to_dial() {
    let (_state, explainer) = explainer();
    for name in ["press.hall-x", "edge-1.edge.internal"] {
        let put = explainer
            .directory
            .editor()
            .put(&node(name), Vec::new(), vec![9100]);
        put.unwrap();
    }
    says(
        &explainer.explain("press.hall-x", Dial::No).await.unwrap(),
        false,
        &[
            "may be another host's",
            "fix: dial press.hall-x.edge.internal\n",
        ],
    );
    let whole = explainer.explain("edge-1.edge.internal", Dial::No).await;
    let text = text(&whole.unwrap());
    for line in [
        "directory: name of edge-1.edge.internal;",
        "dns: edge-1.edge.internal: A ",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let short = explainer.explain("edge-1", Dial::No).await.unwrap();
    says(&short, false, &["dns: edge-1: A 198.18.0.1"]);
}

#[test]
fn a_dial_is_told_with_its_code_and_what_to_look_at() {
    let (_state, explainer) = explainer();
    let mut facts = online(&explainer, "edge-1:9100");
    let accepted = Accepted {
        time: Duration::from_micros(1_500),
        tried: None,
    };
    facts.dial = Some(Ok(accepted));
    let ok = "dial: ok: the backend took it in 1.5 ms\n";
    says(&words::explanation(&facts), true, &[ok]);
    let accepted = Accepted {
        time: Duration::from_micros(1_500),
        tried: Some("10.0.3.7:9100: refused".to_owned()),
    };
    facts.dial = Some(Ok(accepted));
    says(
        &words::explanation(&facts),
        true,
        &["dial: ok: the backend took it in 1.5 ms, after 10.0.3.7:9100: refused\n"],
    );
    facts.waits = vec![Duration::from_secs(41), Duration::from_secs(2)];
    says(
        &words::explanation(&facts),
        true,
        &[
            "dial: accepted, but",
            "streams: 2 to it",
            "for up to 41 s",
            "fix: does the backend",
        ],
    );
    facts.waits.clear();
    let failure = |code| DialFailure {
        code,
        message: "10.0.3.7:9100: no".into(),
    };
    for (code, words) in [
        (
            DialCode::Refused,
            "dial: refused: edge-1: 10.0.3.7:9100: no\nfix: on edge-1: `ss -ltn sport = :9100`",
        ),
        (
            DialCode::TimedOut,
            "dial: timed_out: edge-1: 10.0.3.7:9100: no\nfix: on edge-1: a firewall",
        ),
        (
            DialCode::Failed,
            "dial: failed: edge-1: 10.0.3.7:9100: no\n",
        ),
    ] {
        facts.dial = Some(Err(RouteError::Dial {
            node: node("edge-1"),
            failure: failure(code),
        }
        .into()));
        says(&words::explanation(&facts), false, &[words]);
    }
    facts.dial = Some(Err(RouteError::Tunnel {
        node: node("edge-1"),
        source: OpenError::TimedOut,
    }
    .into()));
    says(
        &words::explanation(&facts),
        false,
        &["dial: timed_out: open a stream to edge-1: the agent did not answer"],
    );
}

#[test]
fn an_agent_on_another_host_than_its_node_s_is_named_and_not_opened() {
    let (_state, explainer) = explainer();
    let mut facts = online(&explainer, "10.0.3.7:9100");
    facts.tunnels[0].described.addresses = vec!["192.168.1.10".into()];
    facts.misplaced = Some(Misplaced::Stranger(AgentRun {
        from: "198.51.100.1".parse().unwrap(),
        has: Vec::new(),
    }));
    let explanation = words::explanation(&facts);
    says(
        &explanation,
        false,
        &[
            "agents: its agent runs from 198.51.100.1 on a host with none of",
            "agent: refuses to dial 10.0.3.7:9100",
            "fix: on a host that is not edge-1: stop culvert-agent",
        ],
    );
    let fixes: Vec<&str> = explanation
        .lines
        .iter()
        .filter(|line| line.subject == "fix")
        .map(|line| line.text.as_str())
        .collect();
    assert!(!fixes.concat().contains("--allow"), "{fixes:?}");
}
