//! What operators can do, and what they are told.

use culvert_daemon::Idle;
use culvert_proxy_commands::control_client::Client;
use culvert_proxy_core::directory::{self, Destination, DirectoryConfig, Handles};
use culvert_proxy_core::metrics::Metrics;
use culvert_proxy_core::state::StateDir;
use culvert_proxy_streams::live::{Frontend, Streams};
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::route::Router;
use culvert_proxy_trust::identity::Purpose;
use culvert_proxy_trust::{TrustConfig, TrustSource};
use tempfile::TempDir;
use tonic::Code;

use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn control(file: Option<&str>) -> (TempDir, Control) {
    let path = tempfile::tempdir().unwrap();
    let state = StateDir::open(&path.path().join("state")).unwrap();
    let mut config = DirectoryConfig::for_tests(state.clone());
    if let Some(text) = file {
        config.file = Some(path.path().join("nodes.toml"));
        std::fs::write(path.path().join("nodes.toml"), text).unwrap();
    }
    let control = with(&config, &state);
    (path, control)
}

fn with(config: &DirectoryConfig, state: &StateDir) -> Control {
    let Handles {
        directory, editor, ..
    } = directory::open(config).unwrap();
    let trust = TrustConfig {
        state: state.clone(),
        source: TrustSource::Embedded,
        server_name: "culvert-proxy".into(),
        hosts: Vec::new(),
        certificate_lifetime: 30 * DAY,
    };
    let trust = Trust::open(trust, directory.clone()).unwrap();
    let advertised = Advertised {
        given: vec!["proxy.example:443".parse().unwrap()],
        agent_listen: "[::]:7400".parse().unwrap(),
    };
    let tokens = Tokens::open(state.clone(), DAY).unwrap();
    let registry = Registry::new(directory.clone(), Metrics::default());
    let streams = Streams::for_tests(Metrics::default());
    let router = Router::new(
        directory.clone(),
        registry.clone(),
        streams.clone(),
        Metrics::default(),
    );
    let explainer = Explainer::new(directory.clone(), registry.clone(), router);
    Control {
        directory,
        editor,
        trust,
        tokens,
        registry,
        own: culvert_proxy_peers::own_info("test".into(), Vec::new()),
        advertised,
        explainer,
        streams: StreamList::new(streams, Idle::default()),
        primary: None,
    }
}

fn token_request(node: &str, addresses: &[&str]) -> Request<proto::CreateTokenRequest> {
    let addresses = addresses
        .iter()
        .map(|address| (*address).to_owned())
        .collect();
    Request::new(proto::CreateTokenRequest {
        node: node.into(),
        addresses,
        ports: vec![9100],
        ..proto::CreateTokenRequest::default()
    })
}

fn removal(node: &str) -> Request<proto::RemoveNodeRequest> {
    Request::new(proto::RemoveNodeRequest { name: node.into() })
}

async fn streams_of(control: &Control, node: &str) -> Result<(), Status> {
    let request = proto::ListStreamsRequest {
        node: node.into(),
        ..proto::ListStreamsRequest::default()
    };
    control.list_streams(Request::new(request)).await.map(drop)
}

#[tokio::test]
async fn operators_may_write_a_zone_and_remove_a_node_by_its_own_name_alone() {
    let (_path, control) = control(None);
    for node in ["edge-1", "edge-2", "edge-2.edge.internal"] {
        control
            .create_token(token_request(node, &[]))
            .await
            .unwrap();
    }
    for name in ["edge-1", "edge-1.edge.internal", "EDGE-1.edge.internal."] {
        streams_of(&control, name).await.unwrap();
        let request = Request::new(proto::PingRequest { node: name.into() });
        let answer = control.ping(request).await;
        refused(answer, Code::FailedPrecondition, "edge-1 has no tunnel");
    }
    assert!(streams_of(&control, "edge-3.edge.internal").await.is_err());
    let listed = control
        .list_nodes(Request::new(proto::ListNodesRequest {}))
        .await
        .unwrap()
        .into_inner()
        .nodes;
    assert_eq!(listed[0].names, ["edge-1", "edge-1.edge.internal"]);
    assert_eq!(listed[1].names, ["edge-2"]);
    let other = "edge-1 by this name";
    let removed = control.remove_node(removal("edge-1.edge.internal")).await;
    refused(removed, Code::NotFound, other);
    streams_of(&control, "edge-1").await.unwrap();
}

fn refused<T: std::fmt::Debug>(answer: Result<Response<T>, Status>, code: Code, text: &str) {
    let status = answer.unwrap_err();
    assert!(
        status.code() == code && status.message().contains(text),
        "{status}"
    );
}

#[tokio::test]
async fn a_token_comes_with_all_that_joining_needs_and_its_node_exists() {
    let (_path, control) = control(None);
    let created = control
        .create_token(token_request("edge-1", &["10.0.3.7"]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (created.proxies, created.server_name.as_str()),
        (vec!["proxy.example:443".to_owned()], "culvert-proxy")
    );
    assert_eq!(created.ca_pin, control.trust.pin().unwrap());
    assert_eq!(
        control
            .tokens
            .check(&created.token.parse().unwrap(), None)
            .unwrap()
            .as_str(),
        "edge-1"
    );
    let nodes = control
        .list_nodes(Request::new(proto::ListNodesRequest {}))
        .await
        .unwrap()
        .into_inner()
        .nodes;
    assert_eq!(
        (
            nodes[0].name.as_str(),
            nodes[0].tunnels,
            nodes[0].ports.as_slice()
        ),
        ("edge-1", 0, &[9100][..])
    );
    assert_eq!(
        (nodes[0].addresses.as_slice(), nodes[0].vip4.as_str()),
        (&["10.0.3.7".to_owned()][..], "198.18.0.1")
    );
}

#[tokio::test]
async fn an_address_that_does_not_route_is_noted_with_both_owners() {
    let (_path, control) = control(None);
    control
        .create_token(token_request("edge-2", &["192.168.1.10"]))
        .await
        .unwrap();
    let created = control
        .create_token(token_request("edge-3", &["192.168.1.10"]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        created.notes,
        ["192.168.1.10 belongs to edge-2 and edge-3: use their names"]
    );
}

#[tokio::test]
async fn bad_wishes_are_refused_with_the_fix_and_change_nothing() {
    let (_path, control) = control(None);
    for (node, address, text) in [
        ("Edge_1", "10.0.3.7", "is not a node name"),
        ("edge-1", "10.0.3", "is not an IP address"),
        ("edge-1", "127.0.0.1", "is a loopback address"),
        ("edge-1", "198.18.0.9", "is in the VIP range"),
        ("culvert-proxy", "10.0.3.7", "name the node otherwise"),
    ] {
        refused(
            control.create_token(token_request(node, &[address])).await,
            Code::InvalidArgument,
            text,
        );
    }
    let mut request = token_request("edge-1", &[]);
    request.get_mut().ports = vec![70000];
    refused(
        control.create_token(request).await,
        Code::InvalidArgument,
        "70000 is not a port",
    );
    let mut request = token_request("edge-1", &[]);
    request.get_mut().lifetime_seconds = u64::MAX;
    refused(
        control.create_token(request).await,
        Code::InvalidArgument,
        "a year at most",
    );
    assert!(control.directory.nodes().is_empty() && control.tokens.list().is_empty());
}

#[tokio::test]
async fn removing_a_node_closes_its_tunnels_and_revokes_certificates_and_tokens() {
    let (_path, control) = control(None);
    let token = control
        .create_token(token_request("edge-1", &[]))
        .await
        .unwrap()
        .into_inner()
        .token;
    let tunnel = control.registry.register_for_tests("edge-1").await;
    control.remove_node(removal("edge-1")).await.unwrap();
    tunnel.closed().await;
    assert!(!control.directory.contains(&"edge-1".parse().unwrap()));
    assert!(
        control
            .tokens
            .check(&token.parse().unwrap(), None)
            .unwrap_err()
            .to_string()
            .contains("was revoked")
    );
    refused(
        control.remove_node(removal("edge-1")).await,
        Code::NotFound,
        "no edge node is named edge-1",
    );
}

#[tokio::test]
async fn in_a_cluster_a_join_token_is_refused_with_what_to_do_instead() {
    let path = tempfile::tempdir().unwrap();
    let state = StateDir::open(&path.path().join("state")).unwrap();
    let mut config = DirectoryConfig::for_tests(state.clone());
    config.nodes_from = directory::NodesFrom::Cluster;
    let control = with(&config, &state);
    let answer = control.create_token(token_request("edge-1", &[])).await;
    refused(
        answer,
        Code::FailedPrecondition,
        "label the Node edge-1 as --node-selector says",
    );
    assert!(control.tokens.list().is_empty());
}

#[tokio::test]
async fn a_node_is_shut_out_even_when_the_disk_is_full() {
    let (path, control) = control(None);
    for blocked in ["certificates.jsonl", "tokens.json"] {
        let token = control
            .create_token(token_request("edge-1", &[]))
            .await
            .unwrap()
            .into_inner()
            .token;
        let blocked = path.path().join("state").join(blocked);
        // As on a full disk: nothing can be written under this name.
        let kept = std::fs::read(&blocked).ok();
        drop(std::fs::remove_file(&blocked));
        std::fs::create_dir(&blocked).unwrap();
        let tunnel = control.registry.register_for_tests("edge-1").await;
        refused(
            control.remove_node(removal("edge-1")).await,
            Code::Internal,
            "until this proxy restarts",
        );
        tunnel.closed().await;
        assert!(
            control.tokens.check(&token.parse().unwrap(), None).is_ok()
                == blocked.ends_with("tokens.json")
        );
        std::fs::remove_dir(&blocked).unwrap();
        if let Some(text) = kept {
            std::fs::write(&blocked, text).unwrap();
        }
    }
}

#[tokio::test]
async fn a_node_of_the_file_is_revoked_at_once_and_the_operator_told_about_the_file() {
    let (_path, control) = control(Some("[nodes.edge-1]\n"));
    let tunnel = control.registry.register_for_tests("edge-1").await;
    refused(
        control.remove_node(removal("edge-1")).await,
        Code::FailedPrecondition,
        "nodes.toml still describes it",
    );
    tunnel.closed().await;
    assert!(control.trust.identify(&[], Purpose::Tunnel).is_err());
    refused(
        control
            .create_token(token_request("edge-1", &["10.0.3.9"]))
            .await,
        Code::FailedPrecondition,
        "is described in",
    );
}

#[tokio::test]
async fn tokens_are_listed_without_their_secrets_and_revoked_by_id() {
    let (_path, control) = control(None);
    control
        .create_token(token_request("edge-1", &[]))
        .await
        .unwrap();
    let list = async || {
        control
            .list_tokens(Request::new(proto::ListTokensRequest {}))
            .await
            .unwrap()
            .into_inner()
            .tokens
            .remove(0)
    };
    let token = list().await;
    assert_eq!(
        (token.node.as_str(), token.state.as_str()),
        ("edge-1", "usable")
    );
    let revoke = |id: &str| Request::new(proto::RevokeTokenRequest { id: id.into() });
    control.revoke_token(revoke(&token.id)).await.unwrap();
    assert_eq!(list().await.state, "revoked");
    refused(
        control.revoke_token(revoke("nothing")).await,
        Code::NotFound,
        "there is no token nothing",
    );
}

#[tokio::test]
async fn operators_reach_the_proxy_through_its_socket() {
    let (path, control) = control(None);
    let at = path.path().join("control.sock");
    let socket = LocalSocket::bind(
        &at,
        culvert_proxy_streams::sockets::local_socket::Access::Owner,
    )
    .unwrap();
    let drain = Drain::default();
    let asked = async {
        let mut client = Client::connect(&at).await.unwrap();
        let created = client
            .create_token(token_request("edge-1", &["10.0.3.7"]).into_inner())
            .await
            .unwrap();
        let listed = (
            client.list_nodes().await.unwrap(),
            client.list_tokens().await.unwrap(),
        );
        let refusal = client
            .revoke_token("nothing")
            .await
            .unwrap_err()
            .to_string();
        client
            .remove_node(&"edge-1".parse().unwrap())
            .await
            .unwrap();
        drain.start();
        (created, listed, refusal)
    };
    let (served, (created, (nodes, tokens), refusal)) =
        tokio::join!(serve(socket, control, drain.clone()), asked);
    served.unwrap();
    assert!(created.token.contains(&tokens[0].id));
    assert_eq!(
        (nodes[0].name.as_str(), tokens[0].node.as_str()),
        ("edge-1", "edge-1")
    );
    assert_eq!(
        refusal,
        "there is no token nothing: see `culvert token list`"
    );
    let error = Client::connect(&at).await.err().unwrap().to_string();
    assert!(
        error.contains("control.sock") && error.contains("is culvert-proxy running"),
        "{error}"
    );
}

#[tokio::test]
async fn a_name_that_nobody_could_reach_is_refused_and_another_ones_is_noted() {
    let (_path, control) = control(None);
    let long = vec!["a".repeat(60); 4].join(".");
    for (name, reason) in [
        ("localhost", "asking host"),
        ("app.localhost", "asking host"),
        ("10.1", "IPv4 address"),
        ("4.3.2.1.in-addr.arpa", "name of an address"),
        (&long, "at most 253"),
    ] {
        let answer = control.create_token(token_request(name, &[])).await;
        refused(answer, Code::InvalidArgument, reason);
    }
    let created = control
        .create_token(token_request("press.hall-2", &[]))
        .await;
    let notes = created.unwrap().into_inner().notes.join("\n");
    assert!(notes.contains("press.hall-2.edge.internal"), "{notes}");
    let created = control
        .create_token(token_request("edge-7.edge.internal", &[]))
        .await;
    let notes = created.unwrap().into_inner().notes.join("\n");
    assert!(!notes.contains("edge-7"), "{notes}");
}

#[tokio::test]
async fn a_proxy_counts_its_own_streams() {
    let (_path, control) = control(None);
    let streams = control.streams.streams();
    let destination = Destination::Address("10.0.3.7:9100".parse().unwrap());
    let _open = streams.start_record(1, Frontend::Nftables, "10.9.0.1:4000".into(), destination);
    let listed = control.list_proxies(Request::new(proto::ListProxiesRequest {}));
    let listed = listed.await.unwrap().into_inner();
    assert_eq!(listed.proxies[0].streams, 1);
}

#[tokio::test]
async fn streams_of_a_node_that_does_not_exist_are_refused_and_of_one_without_any_are_none() {
    let (_path, control) = control(None);
    control
        .create_token(token_request("edge-1", &[]))
        .await
        .unwrap();
    let of = |node: &str| {
        Request::new(proto::ListStreamsRequest {
            node: node.into(),
            ..proto::ListStreamsRequest::default()
        })
    };
    let listed = control.list_streams(of("edge-1")).await.unwrap();
    assert_eq!(listed.into_inner().streams, []);
    let listed = control.list_streams(of("edge-9")).await;
    refused(listed, Code::NotFound, "edge-9");
    let all = control.list_streams(of("")).await.unwrap();
    assert_eq!(all.into_inner().streams, []);
}
