//! The directory with real files: what it keeps, what it refuses, and what watchers see.

use std::net::IpAddr;
use std::path::Path;

use culvert_api::Routing;
use culvert_daemon::Drain;
use futures_util::FutureExt;

use super::*;
use crate::testing::FullDisk;

fn config(directory: &Path) -> DirectoryConfig {
    DirectoryConfig::for_tests(StateDir::open(&directory.join("state")).unwrap())
}

fn open_directory(config: &DirectoryConfig) -> Result<Directory, DirectoryError> {
    open(config).map(|handles| handles.directory)
}

fn with_file(directory: &Path) -> DirectoryConfig {
    DirectoryConfig {
        file: Some(directory.join("nodes.toml")),
        ..config(directory)
    }
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn vip4(directory: &Directory, node: &str) -> String {
    directory.node(&name(node)).unwrap().vip4.to_string()
}

fn goes_to(directory: &Directory, destination: &str) -> Option<String> {
    directory
        .resolve(&destination.parse().unwrap())
        .ok()
        .map(|target| target.node.to_string())
}

#[test]
fn nodes_and_vips_survive_a_restart() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = open_directory(&config(temporary.path())).unwrap();
    directory
        .editor()
        .put(&name("edge-2"), addresses(&["10.0.3.8"]), vec![9100])
        .unwrap();
    directory
        .editor()
        .put(&name("edge-1"), addresses(&["10.0.3.7"]), Vec::new())
        .unwrap();
    let before = directory.nodes();
    drop(directory);
    let directory = open_directory(&config(temporary.path())).unwrap();
    assert_eq!(directory.nodes(), before);
    assert_eq!(vip4(&directory, "edge-2"), "198.18.0.1");
}

#[test]
fn the_random_ipv6_range_is_made_once() {
    let temporary = tempfile::tempdir().unwrap();
    let range = || {
        let config = DirectoryConfig {
            vip6_range: None,
            ..config(temporary.path())
        };
        open_directory(&config)
            .unwrap()
            .published()
            .view
            .ranges()
            .vip6
    };
    assert_eq!(range(), range());
}

#[test]
fn changing_a_node_leaves_what_is_not_given() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = open_directory(&config(temporary.path())).unwrap();
    directory
        .editor()
        .put(&name("edge-1"), addresses(&["10.0.3.7"]), vec![9100])
        .unwrap();
    directory
        .editor()
        .put(&name("edge-1"), Vec::new(), Vec::new())
        .unwrap();
    directory
        .editor()
        .put(&name("edge-1"), Vec::new(), vec![80])
        .unwrap();
    let node = directory.node(&name("edge-1")).unwrap();
    assert_eq!(
        (node.addresses[0].ip.to_string(), node.ports),
        ("10.0.3.7".to_owned(), vec![80])
    );
}

#[test]
fn an_address_in_a_vip_range_is_refused_and_changes_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = open_directory(&config(temporary.path())).unwrap();
    let error = directory
        .editor()
        .put(&name("edge-1"), addresses(&["198.18.3.3"]), Vec::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("198.18.3.3 of edge-1 is in the VIP range 198.18.0.0/15"),
        "{error}"
    );
    assert!(!directory.contains(&name("edge-1")));
}

#[test]
fn a_vip_range_that_holds_the_hosts_own_address_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let config = DirectoryConfig {
        vip4_range: "127.0.0.0/16".parse().unwrap(),
        ..config(temporary.path())
    };
    let error = open_directory(&config).unwrap_err().to_string();
    assert!(
        error.contains("127.0.0.0/16 overlaps") && error.contains("--vip4-range"),
        "{error}"
    );
}

#[test]
fn another_vip4_range_moves_the_vips() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = open_directory(&config(temporary.path())).unwrap();
    directory
        .editor()
        .put(&name("edge-1"), Vec::new(), Vec::new())
        .unwrap();
    drop(directory);
    let moved = DirectoryConfig {
        vip4_range: "100.64.0.0/16".parse().unwrap(),
        ..config(temporary.path())
    };
    let directory = open_directory(&moved).unwrap();
    assert_eq!(vip4(&directory, "edge-1"), "100.64.0.1");
    assert_eq!(goes_to(&directory, "100.64.0.1:80").unwrap(), "edge-1");
}

#[test]
fn a_broken_state_file_stops_the_start_and_stays() {
    let temporary = tempfile::tempdir().unwrap();
    drop(open_directory(&config(temporary.path())).unwrap());
    let path = temporary.path().join("state/directory.json");
    let text = std::fs::read_to_string(&path)
        .unwrap()
        .replace("\"nodes\"", "\"noodles\"");
    std::fs::write(&path, &text).unwrap();
    let error = open_directory(&config(temporary.path()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("directory.json, line") && error.contains("noodles"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn the_file_wins_for_its_nodes_and_is_changed_by_nobody_else() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("nodes.toml");
    std::fs::write(&file, "[nodes.edge-1]\naddresses = [\"10.0.3.7\"]\n").unwrap();
    let directory = open_directory(&with_file(temporary.path())).unwrap();
    directory
        .editor()
        .put(&name("edge-1"), Vec::new(), Vec::new())
        .unwrap();
    let error = directory
        .editor()
        .put(&name("edge-1"), addresses(&["10.0.3.9"]), Vec::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("edge-1 is described in") && error.contains("nodes.toml"),
        "{error}"
    );
    assert_eq!(
        directory.editor().remove(&name("edge-1")).unwrap(),
        Removal::StillInFile(file)
    );
    assert_eq!(goes_to(&directory, "10.0.3.7:80").unwrap(), "edge-1");
    assert!(matches!(
        directory.editor().remove(&name("edge-9")),
        Err(DirectoryError::UnknownNode { .. })
    ));
}

#[test]
fn a_changed_file_is_taken_up_and_a_broken_one_leaves_the_last_good() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("nodes.toml");
    std::fs::write(&file, "[nodes.edge-1]\n[nodes.edge-2]\n").unwrap();
    let directory = open_directory(&with_file(temporary.path())).unwrap();
    std::fs::write(&file, "[nodes.edge-1]\naddresses = [\"10.0.3.7\"]\n").unwrap();
    assert_eq!(directory.editor().refresh(), [name("edge-2")]);
    assert_eq!(goes_to(&directory, "10.0.3.7:80").unwrap(), "edge-1");
    std::fs::write(&file, "[nodes.edge-1\n").unwrap();
    assert_eq!(directory.editor().refresh(), []);
    assert!(
        directory
            .editor()
            .file_problem()
            .unwrap()
            .contains("line 1")
    );
    assert_eq!(goes_to(&directory, "10.0.3.7:80").unwrap(), "edge-1");
    std::fs::remove_file(&file).unwrap();
    directory.editor().refresh();
    assert!(
        directory
            .editor()
            .file_problem()
            .unwrap()
            .contains("nodes.toml")
    );
    drop(directory);

    let restarted = open_directory(&with_file(temporary.path())).unwrap();
    assert_eq!(
        goes_to(&restarted, "10.0.3.7:80").unwrap(),
        "edge-1",
        "a restart keeps the last good too"
    );
    std::fs::write(&file, "[nodes.edge-3]\n").unwrap();
    assert_eq!(restarted.editor().refresh(), [name("edge-1")]);
    assert_eq!(restarted.editor().file_problem(), None);
}

#[tokio::test]
async fn readiness_names_a_file_that_never_was_good() {
    let temporary = tempfile::tempdir().unwrap();
    std::fs::write(temporary.path().join("nodes.toml"), "nodes = 1").unwrap();
    let directory = open_directory(&with_file(temporary.path())).unwrap();
    let readiness = culvert_daemon::Readiness::default();
    let drain = Drain::default();
    let gate = readiness.gate("directory");
    let mut maintained = Box::pin(directory.editor().maintain(gate, |_| {}, drain.clone()));
    while !readiness
        .missing()
        .iter()
        .any(|(_, reason)| reason.contains("nodes.toml, line 1"))
    {
        assert!((&mut maintained).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    drain.start();
    maintained.await.unwrap();
}

#[test]
fn the_hosts_own_addresses_are_protected() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = open_directory(&config(temporary.path())).unwrap();
    let own = culvert_daemon::host_addresses()
        .unwrap()
        .into_iter()
        .find(|address| never_a_nodes(*address).is_none());
    // A host without a network has no addresses to protect.
    let Some(own) = own else { return };
    directory
        .editor()
        .put(&name("edge-1"), vec![own], Vec::new())
        .unwrap();
    let error = directory
        .resolve(&Destination::Address((own, 80).into()))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("an address of this proxy's host"),
        "{error}"
    );
}

#[tokio::test]
async fn watchers_get_a_snapshot_and_then_each_change() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = open_directory(&config(temporary.path())).unwrap();
    directory
        .editor()
        .put(&name("edge-2"), addresses(&["192.168.1.10"]), Vec::new())
        .unwrap();
    let mut watcher = directory.watch();
    let Event::Snapshot {
        revision, nodes, ..
    } = watcher.next().await
    else {
        panic!("the first is a snapshot")
    };
    assert_eq!(nodes.len(), 1);

    directory
        .editor()
        .put(&name("edge-3"), addresses(&["192.168.1.10"]), Vec::new())
        .unwrap();
    directory.set_presence(&name("edge-2"), Presence::Online);
    directory.set_presence(&name("edge-2"), Presence::Online);
    directory.editor().remove(&name("edge-3")).unwrap();
    let added = change(&mut watcher).await;
    let online = change(&mut watcher).await;
    let removed = change(&mut watcher).await;
    assert_eq!(changed(&added), ["edge-2", "edge-3"]);
    assert!(
        added
            .changed
            .iter()
            .all(|node| node.addresses[0].routing == Routing::Shared)
    );
    assert_eq!(
        (changed(&online), online.changed[0].online),
        (vec!["edge-2".to_owned()], true)
    );
    assert_eq!(
        (changed(&removed), removed.removed.clone()),
        (vec!["edge-2".to_owned()], vec![name("edge-3")])
    );
    assert!(
        removed.changed[0].online,
        "the view was computed anew, and edge-2 is online still"
    );
    assert_eq!(
        [added.revision, online.revision, removed.revision],
        [revision + 1, revision + 2, revision + 3]
    );
}

#[tokio::test]
async fn a_watcher_that_lags_gets_a_new_snapshot() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = Directory::for_tests(temporary.path(), &[name("edge-1")]);
    let mut watcher = directory.watch();
    assert!(matches!(watcher.next().await, Event::Snapshot { .. }));
    for turn in 0..=WATCH_BACKLOG {
        let presence = if turn % 2 == 0 {
            Presence::Online
        } else {
            Presence::Offline
        };
        directory.set_presence(&name("edge-1"), presence);
    }
    let Event::Snapshot { nodes, .. } = watcher.next().await else {
        panic!("a snapshot replaces what was lost")
    };
    assert!(nodes[0].online);
    directory.set_presence(&name("edge-1"), Presence::Offline);
    assert!(!change(&mut watcher).await.changed[0].online);
}

async fn change(watcher: &mut Watcher) -> Arc<Change> {
    match watcher.next().await {
        Event::Change(change) => change,
        snapshot @ Event::Snapshot { .. } => panic!("{snapshot:?} is not a change"),
    }
}

fn changed(change: &Change) -> Vec<String> {
    change
        .changed
        .iter()
        .map(|node| node.name.to_string())
        .collect()
}

#[test]
fn a_poisoned_state_of_before_frees_the_api_server_at_once_and_has_no_edge_node_dialled_for_real() {
    let temporary = tempfile::tempdir().unwrap();
    let mut config = config(temporary.path());
    let poisoned = r#"{"version": 1, "state": {"kept": {"as_of": 1700000000,
        "allocation": {"ranges": {"vip4": "198.18.0.0/15", "vip6": "fd00:1::/64"},
            "vips": {"held": {"edge-1": 1, "edge-7": 2}, "resting": {}}},
        "nodes": {"clouds": {}, "edges": {
            "edge-1": {"addresses": ["10.0.3.7"], "ports": [], "zone": null},
            "edge-7": {"addresses": ["192.0.2.5"], "ports": [443], "zone": null}}}},
        "ports": {"ports": [10250], "localhost_ports": []}}}"#;
    std::fs::write(config.state.join("cluster.json"), poisoned).unwrap();
    config.nodes_from = NodesFrom::Cluster;
    config.given.api_servers = addresses(&["192.0.2.5"]).into_iter().collect();
    let directory = open_directory(&config).unwrap();
    assert!(directory.is_known(), "redirectors are told");
    let routing = |node: &str| directory.node(&name(node)).unwrap().addresses[0].routing;
    assert_eq!(
        (routing("edge-1"), routing("edge-7")),
        (Routing::Shared, Routing::Protected)
    );
    assert_eq!(directory.node(&name("edge-7")).unwrap().ports, [10250]);

    let ranges = |text: &str| [text.parse().unwrap()].into();
    let service_ranges = ranges("10.96.0.0/12");
    let pod_ranges = ranges("10.244.0.0/16");
    directory
        .cluster_writer()
        .set_own(ClusterOwn {
            service_ranges,
            pod_ranges,
            ..ClusterOwn::default()
        })
        .unwrap();
    assert_eq!(
        (routing("edge-1"), routing("edge-7")),
        (Routing::Routed, Routing::Protected)
    );
    directory
        .cluster_writer()
        .set_api_servers(addresses(&["10.0.3.7"]).into_iter().collect());
    assert_eq!(
        routing("edge-1"),
        Routing::Protected,
        "its name is looked up again"
    );
}

#[test]
fn a_proxy_starts_on_a_full_disk_with_what_it_stored_and_changes_nothing_of_it() {
    let temporary = tempfile::tempdir().unwrap();
    let state = temporary.path().join("state");
    let full = || FullDisk::of(&state, "directory.json");
    std::fs::create_dir(&state).unwrap();
    let disk = full();
    open_directory(&config(temporary.path())).unwrap_err();
    drop(disk);

    let directory = open_directory(&config(temporary.path())).unwrap();
    let put = |directory: &Directory, node: &str| {
        let editor = directory.editor();
        editor.put(&name(node), addresses(&["10.0.3.7"]), vec![9100])
    };
    put(&directory, "edge-1").unwrap();
    let before = directory.nodes();
    drop(directory);
    let disk = full();
    let directory = open_directory(&config(temporary.path())).unwrap();
    assert_eq!(directory.nodes(), before);
    put(&directory, "edge-2").unwrap_err();
    assert_eq!(directory.nodes(), before);
    assert!(directory.editor().write_again().is_some(), "it says so");
    drop(disk);
    assert_eq!(directory.editor().write_again(), None);
    put(&directory, "edge-2").unwrap();
}

#[test]
fn a_file_whose_nodes_cannot_be_stored_is_used_when_they_can() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("nodes.toml");
    std::fs::write(&file, "[nodes.edge-1]\n").unwrap();
    let directory = open_directory(&with_file(temporary.path())).unwrap();
    let full = FullDisk::of(&temporary.path().join("state"), "directory.json");
    std::fs::write(&file, "[nodes.edge-2]\n").unwrap();
    assert_eq!(directory.editor().refresh(), []);
    assert!(directory.contains(&name("edge-1")) && !directory.contains(&name("edge-2")));
    assert!(directory.editor().file_problem().is_some());
    drop(full);
    assert_eq!(directory.editor().refresh(), [name("edge-1")]);
    assert!(directory.contains(&name("edge-2")));
}
