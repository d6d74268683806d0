//! Tests of the registry with tunnels over pipes.

use culvert_tunnel::ReadAhead;
use culvert_tunnel::proto::tunnel::Open;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::copies::Misplaced;
use crate::testing::{tunnel, tunnel_for, tunnel_over};

async fn register(registry: &Registry, instance: &str, slot: &str) -> Registration {
    let described = DescribeResponse {
        instance: instance.into(),
        slot: slot.into(),
        ..Default::default()
    };
    registry.register(
        node(),
        tunnel().await,
        described,
        "10.0.3.7:40000".parse().unwrap(),
    )
}

fn node() -> NodeName {
    "edge-1".parse().unwrap()
}

fn order(registry: &Registry) -> Vec<u64> {
    registry
        .candidates(&node())
        .iter()
        .map(|candidate| match candidate {
            Candidate::Agent(registered) => registered.generation,
            Candidate::Peer(_) => panic!("no peer is registered"),
        })
        .collect()
}

fn registry() -> (tempfile::TempDir, Registry) {
    let state = tempfile::tempdir().unwrap();
    let directory = Directory::for_tests(state.path(), &[node()]);
    (state, Registry::new(directory, Metrics::default()))
}

fn online(registry: &Registry) -> bool {
    registry
        .0
        .directory
        .node(&node())
        .is_some_and(|view| view.online)
}

#[tokio::test]
async fn an_old_tunnel_ending_late_removes_nothing_newer() {
    let (_state, registry) = registry();
    let old = register(&registry, "run-1", "0").await;
    let new = register(&registry, "run-2", "0").await;
    drop(old);
    assert_eq!((registry.count(&node()), online(&registry)), (1, true));
    drop(new);
    assert_eq!((registry.count(&node()), online(&registry)), (0, false));
}

#[tokio::test]
async fn superseded_tunnels_are_tried_last() {
    let (_state, registry) = registry();
    let _first = register(&registry, "run-1", "0").await;
    let _second = register(&registry, "run-1", "1").await;
    assert_eq!(
        order(&registry),
        [1, 2],
        "two slots of one run serve side by side"
    );
    let _again = register(&registry, "run-1", "0").await;
    assert_eq!(
        order(&registry),
        [2, 3, 1],
        "the slot's earlier tunnel may be dead"
    );
    let _restarted = register(&registry, "run-2", "0").await;
    assert_eq!(order(&registry)[0], 4, "all of the earlier run may be");
}

#[tokio::test]
async fn a_tunnel_that_its_agent_ends_is_tried_last() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let (near, mut far) = tokio::io::duplex(1 << 10);
    far.write_all(&[&SETTINGS[..], &GOAWAY].concat())
        .await
        .unwrap();
    let ending = tunnel_over(ReadAhead::new(near), far, 1 << 29).await;
    let (_state, registry) = registry();
    let agent = "10.0.3.7:40000".parse().unwrap();
    let slot = |slot: &str| DescribeResponse {
        slot: slot.into(),
        ..Default::default()
    };
    let _other = registry.register(node(), tunnel().await, slot("1"), agent);
    let _ending = registry.register(node(), ending.clone(), slot("0"), agent);
    let _free = registry.register(node(), tunnel().await, slot("2"), agent);
    while ending.takes_streams() {
        tokio::task::yield_now().await;
    }
    assert_eq!(order(&registry), [1, 3, 2]);
}

#[tokio::test]
async fn a_tunnel_that_bulk_keeps_busy_is_tried_after_one_that_is_free() {
    let (near, mut far) = tokio::io::duplex(64 << 10);
    let mut io = ReadAhead::new(near);
    far.write_all(&[7; 64 << 10]).await.unwrap();
    io.read_exact(&mut [0; 64 << 10]).await.unwrap();
    let busy = tunnel_over(io, far, 1 << 29).await;
    let (_state, registry) = registry();
    let agent = "10.0.3.7:40000".parse().unwrap();
    let slot = |slot: &str| DescribeResponse {
        slot: slot.into(),
        ..Default::default()
    };
    let _busy = registry.register(node(), busy.clone(), slot("0"), agent);
    let _other = registry.register(node(), tunnel().await, slot("1"), agent);
    assert_eq!(order(&registry), [1, 2], "its bulk has ended");
    let mut bulk = Box::pin(busy.open(Open::default(), None));
    assert!(futures_util::poll!(&mut bulk).is_pending());
    assert_eq!(order(&registry), [2, 1]);
}

#[tokio::test]
async fn streams_that_come_at_once_go_to_different_tunnels() {
    let (_state, registry) = registry();
    let _first = register(&registry, "run", "0").await;
    let _second = register(&registry, "run", "1").await;
    let on_its_way = StreamOnItsWay::of(&registry.candidates(&node()));
    assert_eq!(order(&registry), [2, 1]);
    drop(on_its_way);
    assert_eq!(order(&registry), [1, 2]);
}

#[tokio::test]
async fn a_worn_out_tunnel_is_tried_last_and_closed_once_another_has_taken_its_place() {
    let (_state, registry) = registry();
    let described = |slot: &str| DescribeResponse {
        slot: slot.into(),
        ..Default::default()
    };
    let agent = "10.0.3.7:40000".parse().unwrap();
    let worn_out = registry.register(node(), tunnel_for(0).await, described("0"), agent);
    assert_eq!(order(&registry), [1]);
    assert!(
        futures_util::poll!(std::pin::pin!(worn_out.closed())).is_pending(),
        "there is no other"
    );
    let _other = registry.register(node(), tunnel().await, described("1"), agent);
    assert_eq!(order(&registry), [2, 1]);
    worn_out.closed().await;
}

#[tokio::test]
async fn each_tunnel_too_many_closes_the_oldest_that_is_open() {
    let (_state, registry) = registry();
    let mut tunnels = Vec::new();
    // No tunnel leaves the list meanwhile: its thread may notice late that it is closed.
    for slot in 0..TUNNELS_PER_NODE + 2 {
        tunnels.push(register(&registry, "run", &slot.to_string()).await);
    }
    tunnels[0].closed().await;
    tunnels[1].closed().await;
    assert!(futures_util::poll!(std::pin::pin!(tunnels[2].closed())).is_pending());
}

#[tokio::test]
async fn closing_a_node_reaches_all_its_tunnels() {
    let (_state, registry) = registry();
    let tunnels = [
        register(&registry, "run", "0").await,
        register(&registry, "run", "1").await,
    ];
    registry.close(&node());
    for registration in &tunnels {
        registration.closed().await;
    }
}

#[tokio::test]
async fn a_reader_gets_all_tunnels_and_then_one_entry_for_each_change() {
    let (_state, registry) = registry();
    let first = register(&registry, "run", "0").await;
    let _second = register(&registry, "run", "1").await;
    let reader = registry.feed();
    let slow = registry.feed();
    let none: Vec<u64> = Vec::new();
    let opened = |changes: &TunnelChanges| changes.opened.keys().copied().collect::<Vec<u64>>();
    let all = reader.unseen_changes();
    assert_eq!((opened(&all), &all.closed), (vec![1, 2], &none));
    let third = register(&registry, "run", "2").await;
    drop(first);
    let news = reader.unseen_changes();
    assert_eq!((opened(&news), news.closed), (vec![3], vec![1]));
    drop(register(&registry, "run", "3").await);
    let nothing = reader.unseen_changes();
    assert!(nothing.opened.is_empty() && nothing.closed.is_empty());
    drop(third);
    let late = slow.unseen_changes();
    assert_eq!((opened(&late), &late.closed), (vec![2], &none));
    drop((reader, slow));
    assert!(
        registry.lock().feeds.is_empty(),
        "nothing is kept of readers"
    );
}

/// A tunnel of an agent on a host with these addresses.
async fn register_on(registry: &Registry, instance: &str, addresses: &[&str]) -> Registration {
    let described = DescribeResponse {
        instance: instance.into(),
        addresses: addresses.iter().map(|&ip| ip.to_owned()).collect(),
        ..Default::default()
    };
    let agent = "198.51.100.1:40000".parse().unwrap();
    registry.register(node(), tunnel().await, described, agent)
}

#[tokio::test]
async fn a_copy_of_the_disk_takes_no_stream_from_the_host_that_has_the_nodes_address() {
    let (_state, registry) = registry();
    let editor = registry.0.directory.editor();
    let address = "10.0.3.7".parse().unwrap();
    editor.put(&node(), vec![address], vec![9100]).unwrap();
    let own = register_on(&registry, "run-1", &["127.0.0.1", "10.0.3.7"]).await;
    let copy = register_on(&registry, "run-2", &["127.0.0.1", "192.168.1.10"]).await;
    assert_eq!(order(&registry), [1, 2], "though the copy came later");
    let later = register_on(&registry, "run-3", &["10.0.3.7"]).await;
    assert_eq!(
        order(&registry),
        [3, 1, 2],
        "the agent itself was restarted"
    );
    drop((own, later));
    assert_eq!(order(&registry), [2], "nobody knows better");
    let view = registry.0.directory.node(&node()).unwrap();
    assert!(matches!(
        registry.misplaced_of(&view),
        Some(Misplaced::Stranger(_))
    ));
    drop(copy);
}
