//! What an API server says as it ends, starts, is busy, or has lost a kind of objects.

use super::fake_api::Said;
use super::hostile_tests::{say, say_nothing};
use super::tests::{PODS, watch_from, with_listed_pods};
use crate::refusal;
use crate::upstream::{Credential, empty};

const MISSING: Said = Said::new(404, "text/plain", "404 page not found\n");

#[tokio::test]
async fn watches_and_requests_outlast_connections_whose_end_is_announced() {
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    let link = cluster.hub.upstream.link.subscribe(Credential::Node);
    let mut watches = vec![kubelet.watch(&watch_from(101)).await];
    for (name, version) in [("c", 102), ("d", 103), ("e", 104)] {
        cluster.api.shared.goes_away.send_replace(());
        cluster.api.happens("ADDED", name);
        for watch in &mut watches {
            assert_eq!(watch.next().await.unwrap(), format!("ADDED {name}"));
        }
        let answer = kubelet.send("GET", PODS, empty()).await;
        assert_eq!(answer.status(), 200);
        assert!(!answer.headers().contains_key(refusal::HEADER));
        watches.push(kubelet.watch(&watch_from(version)).await);
    }
    assert!(!link.has_changed().unwrap());
}

#[tokio::test]
async fn a_watch_outlasts_what_an_api_server_says_while_it_starts() {
    const JSON: &str = "application/json";
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    for (version, said) in [
        (101, MISSING),
        (102, Said::new(200, JSON, "")),
        (103, Said::new(200, "text/html", "<html>starting</html>")),
        (104, Said::new(429, JSON, "{}")),
        (105, Said::new(504, JSON, "{}")),
    ] {
        let mut watch = kubelet.watch(&watch_from(version)).await;
        say(&cluster, PODS, said);
        let before = cluster.questions(PODS);
        cluster.api.shared.resets.send_replace(());
        cluster.is_asked(PODS, before).await;
        say_nothing(&cluster);
        cluster.api.happens("MODIFIED", "a");
        assert_eq!(watch.next().await.as_deref(), Some("MODIFIED a"));
    }
}

#[tokio::test]
async fn a_watch_of_a_kind_that_is_gone_after_a_cut_says_so() {
    let cluster = with_listed_pods().await;
    let mut watch = cluster.kubelet().watch(&watch_from(101)).await;
    cluster.cut().await;
    say(&cluster, PODS, MISSING);
    cluster.reconnect().await;
    let event = watch.next_event().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&"ERROR".into(), &404.into())
    );
    assert_eq!(watch.next().await, None);
    assert_eq!(cluster.kubelet().get(PODS).await.0, 404);
}

#[tokio::test]
async fn a_busy_api_server_does_not_make_a_client_begin_its_list_again() {
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    say(&cluster, PODS, Said::new(429, "application/json", "{}"));
    assert_eq!(kubelet.get(&format!("{PODS}?limit=1")).await.0, 200);
    let next = format!("{PODS}?limit=1&continue=next");
    assert_eq!(kubelet.get(&next).await.0, 429);
    cluster.cut().await;
    assert_eq!(kubelet.get(&next).await.0, 410);
}
