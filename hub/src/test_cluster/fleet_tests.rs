//! Many hubs of one API server, whose links come back at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Duration, interval, timeout};

use super::fake_api::FakeApi;
use super::tests::{PODS, remembered, watch_from};
use super::{TestClient, TestCluster, TestWatch};
use crate::upstream::Credential;

/// As many as do not take minutes of two processors.
const HUBS: usize = 60;
/// With `cargo xtask test --long`.
const MANY_HUBS: usize = 1000;
const STARTED_AT_ONCE: usize = 16;
/// All hubs share one or two processors here.
const ALL_BACK: Duration = Duration::from_mins(5);

/// Probes, who the cluster is, three watches, and probes again while others are not yet back.
const REQUESTS_OF_A_RETURN: usize = 20;

/// A hub, and a kubelet with its open watches.
struct Edge {
    cluster: TestCluster,
    _kubelet: TestClient,
    watches: Vec<TestWatch>,
}

impl Edge {
    async fn start(api: Arc<FakeApi>) -> Self {
        let state = Arc::new(tempfile::tempdir().unwrap());
        let cluster = TestCluster::start_with(api, state).await;
        cluster.link_is(true).await;
        let kubelet = cluster.kubelet();
        assert_eq!(kubelet.get(PODS).await.0, 200);
        remembered(&cluster, 1).await;
        let mut watches = Vec::new();
        for _ in 0..3 {
            watches.push(kubelet.watch(&watch_from(101)).await);
        }
        Self {
            cluster,
            _kubelet: kubelet,
            watches,
        }
    }

    async fn link_is(&self, up: bool) {
        let mut link = self.cluster.hub.upstream.link.subscribe(Credential::Node);
        let reached = link.wait_for(|link| link.is_up() == up);
        timeout(ALL_BACK, reached).await.unwrap().unwrap();
    }
}

/// The most requests in a second, as long as it is not dropped.
struct Peak(JoinSet<()>, Arc<Mutex<usize>>);

impl Peak {
    fn watch(api: Arc<FakeApi>) -> Self {
        let highest = Arc::new(Mutex::new(0));
        let mut tasks = JoinSet::new();
        let noted = highest.clone();
        tasks.spawn(async move {
            let mut seconds = interval(Duration::from_secs(1));
            let mut before = api.shared.asked.lock().len();
            seconds.tick().await;
            loop {
                seconds.tick().await;
                let now = api.shared.asked.lock().len();
                let mut highest = noted.lock();
                *highest = (*highest).max(now - before);
                before = now;
            }
        });
        Self(tasks, highest)
    }

    fn end(self) -> usize {
        drop(self.0);
        *self.1.lock()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_links_of_a_fleet_are_back_no_hub_lists_and_every_watch_goes_on() {
    culvert_daemon::raise_open_file_limit();
    let hubs = match std::env::var("CULVERT_TEST_LONG") {
        Ok(long) if long == "1" => MANY_HUBS,
        _ => HUBS,
    };
    let api = Arc::new(FakeApi::start().await);
    api.happens("ADDED", "a");
    api.happens("ADDED", "b");
    let starting = Peak::watch(api.clone());
    let starts = stream::iter(0..hubs).map(|_| Edge::start(api.clone()));
    let mut fleet: Vec<Edge> = starts.buffer_unordered(STARTED_AT_ONCE).collect().await;
    let starting = starting.end();
    let listed = api.shared.lists.load(Ordering::Relaxed);
    assert_eq!(listed, hubs, "at the start each kubelet lists once");

    api.cut();
    for edge in &fleet {
        edge.link_is(false).await;
    }
    let asked = api.shared.asked.lock().len();
    let returning = Peak::watch(api.clone());
    api.happens("MODIFIED", "a");
    api.reconnect();
    let begun = tokio::time::Instant::now();
    for edge in &mut fleet {
        edge.link_is(true).await;
        for watch in &mut edge.watches {
            let event = watch.next_within(ALL_BACK).await;
            assert_eq!(event.as_deref(), Some("MODIFIED a"));
        }
    }
    let lasted = begun.elapsed().as_secs_f32();
    let asked = api.shared.asked.lock().len() - asked;
    let returning = returning.end();
    println!(
        "{hubs} hubs: all watches go on after {lasted:.0} s, with {asked} requests, at most \
         {returning} in a second; {starting} in a second while the hubs started"
    );
    let lists = api.shared.lists.load(Ordering::Relaxed) - listed;
    assert_eq!(lists, 0, "lists when the links are back");
    let per_hub = asked / hubs;
    assert!(per_hub <= REQUESTS_OF_A_RETURN, "{per_hub} of each hub");
}
