//! More watches than a connection carries, clients that do not read, and upgrades: what one client
//! does is not felt by the next.

use std::sync::atomic::Ordering;

use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::time::{Duration, sleep, timeout};

use super::tests::{APP, PODS, exec, exec_as, watch_from, with_listed_pods};
use super::{DEADLINE, TestCluster, TestWatch};
use crate::guests::MAX_UPGRADED;
use crate::upstream::connector::Protocols;
use crate::upstream::link::Observation;
use crate::upstream::{Credential, empty};

const SERVICES: &str = "/api/v1/services";
/// Until an answer that is not read has ended, with some reserve.
const UNREAD: Duration = Duration::from_secs(90);

/// Each watch gets this event next.
async fn all_hear(watches: &mut [TestWatch], event: &str) {
    for watch in watches {
        assert_eq!(watch.next().await.as_deref(), Some(event));
    }
}

#[tokio::test]
async fn more_watches_than_a_connection_carries_all_hear_of_changes_and_a_get_is_answered() {
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    let app = cluster.pod(APP);
    let mut watches = Vec::new();
    for _ in 0..300 {
        watches.push(kubelet.watch(&watch_from(101)).await);
    }
    // Clients with more streams than the hub allows on one connection have another one.
    let second = cluster.pod(APP);
    for client in [&app, &second] {
        for _ in 0..65 {
            watches.push(client.watch(&watch_from(101)).await);
        }
    }
    for client in [&kubelet, &app] {
        assert_eq!(client.get(SERVICES).await.0, 200);
    }
    cluster.api.happens("MODIFIED", "a");
    all_hear(&mut watches, "MODIFIED a").await;
    assert!(cluster.hub.upstream.link.is_up(Credential::Node));
}

#[tokio::test]
async fn a_read_that_the_api_server_has_not_begun_is_sent_again() {
    let cluster = with_listed_pods().await;
    for client in [cluster.kubelet(), cluster.pod(APP)] {
        let asked = cluster.api.shared.asked.lock().len();
        cluster.api.shared.unprocessed.lock().insert(PODS, 1);
        let (status, _) = client.get(PODS).await;
        assert_eq!(status, 200);
        let asked_now = cluster.api.shared.asked.lock();
        let new = &asked_now[asked..];
        assert!(
            new.iter().any(|(path, ..)| path == PODS),
            "memory answered, and the link is up: {new:?}"
        );
    }
}

#[tokio::test]
async fn a_pod_that_does_not_read_its_watches_keeps_nobody_from_the_api() {
    let cluster = with_listed_pods().await;
    let silent = cluster.pod("silent");
    let mut unread = Vec::new();
    for _ in 0..12 {
        let path = format!("{PODS}?watch=true&resourceVersion=101&allowWatchBookmarks=true");
        unread.push(silent.send("GET", &path, empty()).await);
    }
    let long_name = "x".repeat(64 << 10);
    for _ in 0..64 {
        cluster.api.happens("MODIFIED", &long_name);
    }
    for client in [cluster.pod(APP), cluster.kubelet()] {
        for _ in 0..10 {
            assert_eq!(client.get(SERVICES).await.0, 200);
            sleep(Duration::from_millis(50)).await;
        }
    }
    let ended = async {
        while !cluster.hub.limits.counts().is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(UNREAD, ended)
        .await
        .expect("answers that nobody reads end");
    drop(unread);
}

/// The number of all clients' watches.
fn watches(cluster: &TestCluster) -> u32 {
    let counts = cluster.hub.limits.counts();
    counts.values().map(|[_, long]| *long).sum()
}

#[tokio::test]
async fn answers_of_one_pod_that_hold_too_much_end_and_those_of_another_live() {
    let cluster = with_listed_pods().await;
    let silent = [cluster.pod("silent"), cluster.pod("silent")];
    let path = watch_from(101);
    let mut heard = cluster.pod(APP).watch(&path).await;
    let mut unread = Vec::new();
    for connection in &silent {
        for _ in 0..80 {
            unread.push(connection.send("GET", &path, empty()).await);
        }
    }
    assert_eq!(watches(&cluster), 161);
    let long_name = "x".repeat(64 << 10);
    for _ in 0..64 {
        cluster.api.happens("MODIFIED", &long_name);
        assert!(heard.next().await.is_some());
        assert!(cluster.hub.budget.bytes() <= 16 << 20);
    }
    let ended = async {
        while watches(&cluster) == 161 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, ended).await.unwrap();
    assert!(watches(&cluster) > 1, "some are left");
    cluster.api.happens("MODIFIED", "a");
    assert_eq!(heard.next().await.as_deref(), Some("MODIFIED a"));
    drop(unread);
}

#[tokio::test]
async fn an_api_server_that_is_too_busy_for_a_probe_is_not_cut_off() {
    let cluster = with_listed_pods().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    let hangs = &cluster.api.shared.hangs_probes;
    hangs.store(true, Ordering::Relaxed);
    let upstream = &cluster.hub.upstream;
    let mut probe = Box::pin(upstream.probe());
    let long_name = "x".repeat(64 << 10);
    let observation = loop {
        tokio::select! {
            (observation, _) = &mut probe => break observation,
            () = sleep(Duration::from_millis(50)) => {
                cluster.api.happens("MODIFIED", &long_name);
                assert!(watch.next().await.is_some());
            }
        }
    };
    assert_eq!(observation, Observation::Heard);
    let (observation, _) = upstream.probe().await;
    assert_eq!(
        observation,
        Observation::TryFailed,
        "it says nothing at all"
    );
}

#[tokio::test]
async fn upgrades_in_which_nothing_moves_give_way_to_newer_ones() {
    let cluster = with_listed_pods().await;
    cluster.stranger().with_token(APP).get(PODS).await;
    let mut idle = Vec::new();
    for _ in 0..=MAX_UPGRADED {
        let (answer, tasks) = exec_as(&cluster, None, APP).await;
        assert_eq!(answer.status(), 101);
        idle.push((hyper::upgrade::on(answer).await.unwrap(), tasks));
    }
    let (first, _tasks) = idle.swap_remove(0);
    let mut rest = Vec::new();
    let mut first = TokioIo::new(first);
    let ended = first.read_to_end(&mut rest);
    // It ends with or without notice of TLS.
    drop(timeout(DEADLINE, ended).await.unwrap());
    let upgrades = cluster.hub.limits.counts().values().next().unwrap()[1];
    assert_eq!(usize::try_from(upgrades).unwrap(), MAX_UPGRADED);
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
}

#[tokio::test]
async fn an_upgrade_counts_until_it_ends() {
    let cluster = with_listed_pods().await;
    let (answer, tasks) = exec(&cluster).await;
    assert_eq!(answer.status(), 101);
    let upgraded = hyper::upgrade::on(answer).await.unwrap();
    assert_eq!(cluster.hub.limits.counts()["node"], [0, 1]);
    drop((upgraded, tasks));
    let ended = async {
        while !cluster.hub.limits.counts().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, ended).await.unwrap();
}

#[tokio::test]
async fn silent_connections_of_the_host_do_not_keep_kubelet_out() {
    let cluster = with_listed_pods().await;
    culvert_daemon::raise_open_file_limit();
    let mut silent = Vec::new();
    for _ in 0..1100 {
        let connector = cluster.connector(&cluster.address, None, Protocols::Http2OrHttp1);
        silent.push(connector.connect().await.unwrap());
    }
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
    assert_eq!(cluster.stranger().with_token(APP).get(PODS).await.0, 200);
    drop(silent);
}
