//! Lists and watches the Nodes, and knows whether its state is current. kube-runtime's watcher does
//! not report when a broken watch works again.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_daemon::{Backoff, chain};
use culvert_proxy_core::metrics::{Metrics, NodeChange};
use culvert_proxy_core::selector::NodeSelector;
use futures_util::{Stream, StreamExt, TryStreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource};
use tokio::sync::watch::Sender;
use tokio::time::{Instant, timeout};

use super::record::{Annotations, Record, Reduced, WatchedNode};
use crate::backoff;
use crate::{READ_TIMEOUT, WATCH_SECONDS};

/// Nodes in one answer. With hundreds of images each, they have some 10 MB.
const PAGE: u32 = 250;
/// The time limit for one page.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// After this time without data, the directory counts as stale.
const SILENCE: Duration = READ_TIMEOUT;
/// A watch that ends sooner than this counts as failed.
const SHORT: Duration = Duration::from_secs(5);
/// The status "Gone": the resource version is too old.
const GONE: u16 = 410;

/// How Nodes are read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// Selects the edge nodes.
    pub(super) edges: NodeSelector,
    pub(super) annotations: Annotations,
}

/// The state of the Nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchedNodes {
    pub(super) state: WatchState,
    /// `None` before the first list.
    pub(super) nodes: Option<Arc<BTreeMap<NodeName, Record>>>,
}

/// Whether the state is current.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum WatchState {
    #[default]
    Starting,
    Following,
    /// The cause.
    Lost(String),
}

/// The reason why a watch ended.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("list the cluster's nodes")]
    List(#[source] kube::Error),
    #[error("list the cluster's nodes: no answer within {LIST_TIMEOUT:?}")]
    ListTimeout,
    #[error("watch the cluster's nodes")]
    Watch(#[source] kube::Error),
    #[error("watch the cluster's nodes: the API server ends it at once")]
    Short,
    #[error(
        "watch the cluster's nodes: the API server said nothing for {} s: its host or \
         the network to it is down",
        .0.as_secs()
    )]
    Silent(Duration),
}

impl WatchError {
    /// Whether all Nodes must be listed again.
    fn is_gone(&self) -> bool {
        match self {
            Self::List(kube::Error::Api(status)) | Self::Watch(kube::Error::Api(status)) => {
                status.code == GONE
            }
            Self::List(_) | Self::Watch(_) | Self::ListTimeout | Self::Short | Self::Silent(_) => {
                false
            }
        }
    }
}

/// Keeps `nodes_tx` equal to the Nodes until it is dropped.
pub(super) async fn watch(
    client: Client,
    reading: Reading,
    metrics: Metrics,
    nodes_tx: Sender<WatchedNodes>,
) -> Infallible {
    let mut watcher = Watcher::new(client, reading, metrics, nodes_tx);
    let mut backoff = backoff();
    loop {
        let Err(error) = watcher.follow(&mut backoff).await;
        if error.is_gone() {
            watcher.version = None;
            tracing::info!(
                "the API server no longer has the events since the last one: all nodes are listed again"
            );
        }
        watcher.lost(chain(&error));
        tokio::time::sleep(backoff.wait()).await;
    }
}

struct Watcher {
    api: Api<WatchedNode>,
    reading: Reading,
    metrics: Metrics,
    nodes_tx: Sender<WatchedNodes>,
    /// The parts of Nodes that were left out, by the Nodes' names in the API server.
    problems: HashMap<String, Vec<String>>,
    /// The last resource version.
    version: Option<String>,
    /// See [`SILENCE`].
    silence: Duration,
}

impl Watcher {
    fn new(
        client: Client,
        reading: Reading,
        metrics: Metrics,
        nodes_tx: Sender<WatchedNodes>,
    ) -> Self {
        let problems = HashMap::new();
        let version = None;
        Self {
            api: Api::all(client),
            reading,
            metrics,
            nodes_tx,
            problems,
            version,
            silence: SILENCE,
        }
    }

    async fn follow(&mut self, backoff: &mut Backoff) -> Result<Infallible, WatchError> {
        loop {
            let version = match self.version.take() {
                Some(version) => version,
                None => self.list().await?,
            };
            self.version = Some(version.clone());
            let params = WatchParams::default().timeout(WATCH_SECONDS);
            let events = timeout(self.silence, self.api.watch(&params, &version)).await;
            let events = events.map_err(|_elapsed| WatchError::Silent(self.silence))?;
            let events = events.map_err(WatchError::Watch)?;
            let started = Instant::now();
            self.following();
            backoff.reset();
            self.apply_all(events.boxed()).await?;
            if started.elapsed() < SHORT {
                return Err(WatchError::Short);
            }
        }
    }

    /// Applies events until the watch ends, as it does at the requested time-out.
    async fn apply_all(
        &mut self,
        mut events: impl Stream<Item = kube::Result<WatchEvent<WatchedNode>>> + Unpin,
    ) -> Result<(), WatchError> {
        loop {
            let event = timeout(self.silence, events.try_next()).await;
            let event = event.map_err(|_elapsed| WatchError::Silent(self.silence))?;
            match event.map_err(WatchError::Watch)? {
                Some(event) => self.apply(event)?,
                None => return Ok(()),
            }
        }
    }

    /// Lists all Nodes, page by page. Returns the version at which the watch begins.
    async fn list(&mut self) -> Result<String, WatchError> {
        let mut nodes = BTreeMap::new();
        let mut problems = HashMap::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = timeout(LIST_TIMEOUT, self.api.list(&params)).await;
            let page = page
                .map_err(|_elapsed| WatchError::ListTimeout)?
                .map_err(WatchError::List)?;
            for node in &page.items {
                let reduced = node.reduced(&self.reading.edges, self.reading.annotations);
                nodes.extend(reduced.node);
                if !reduced.problems.is_empty() {
                    problems.insert(node.name().to_owned(), reduced.problems);
                }
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                self.replace(nodes, problems);
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
        }
    }

    fn replace(
        &mut self,
        nodes: BTreeMap<NodeName, Record>,
        problems: HashMap<String, Vec<String>>,
    ) {
        for (name, now) in &problems {
            if self.problems.get(name) != Some(now) {
                report(name, now);
            }
        }
        self.problems = problems;
        self.nodes_tx
            .send_modify(|seen| seen.nodes = Some(Arc::new(nodes)));
    }

    fn apply(&mut self, event: WatchEvent<WatchedNode>) -> Result<(), WatchError> {
        match event {
            WatchEvent::Added(node) | WatchEvent::Modified(node) => {
                self.version = node.meta().resource_version.clone();
                let reduced = node.reduced(&self.reading.edges, self.reading.annotations);
                self.put(node.name(), reduced);
            }
            WatchEvent::Deleted(node) => {
                self.version = node.meta().resource_version.clone();
                self.metrics.node_event(NodeChange::Changed);
                self.problems.remove(node.name());
                if let Ok(name) = node.name().parse::<NodeName>() {
                    self.edit(|nodes| drop(nodes.remove(&name)));
                }
            }
            WatchEvent::Bookmark(bookmark) => {
                self.version = Some(bookmark.metadata.resource_version)
            }
            WatchEvent::Error(status) => return Err(WatchError::Watch(kube::Error::Api(status))),
        }
        Ok(())
    }

    /// Changes that are only heartbeats end here.
    fn put(&mut self, name: &str, Reduced { node, problems }: Reduced) {
        if problems.is_empty() {
            self.problems.remove(name);
        } else if self.problems.get(name) != Some(&problems) {
            report(name, &problems);
            self.problems.insert(name.to_owned(), problems);
        }
        match node {
            Some((name, record)) if !self.is_known(&name, &record) => {
                self.metrics.node_event(NodeChange::Changed);
                self.edit(|nodes| drop(nodes.insert(name, record)));
            }
            Some(_) | None => self.metrics.node_event(NodeChange::Unchanged),
        }
    }

    fn is_known(&self, name: &NodeName, record: &Record) -> bool {
        match &self.nodes_tx.borrow().nodes {
            Some(nodes) => nodes.get(name) == Some(record),
            None => false,
        }
    }

    /// The map is changed in place. It is copied only while a reader still has the previous one.
    fn edit(&self, edit: impl FnOnce(&mut BTreeMap<NodeName, Record>)) {
        self.nodes_tx
            .send_modify(|seen| edit(Arc::make_mut(seen.nodes.get_or_insert_default())));
    }

    fn following(&self) {
        self.stand(WatchState::Following);
    }

    fn lost(&self, cause: String) {
        self.stand(WatchState::Lost(cause));
    }

    fn stand(&self, state: WatchState) {
        self.nodes_tx.send_if_modified(|seen| {
            let news = seen.state != state;
            seen.state = state;
            news
        });
    }
}

fn report(name: &str, problems: &[String]) {
    let name: String = name.chars().take(253).collect();
    tracing::warn!(
        node = name,
        reason = problems.join("; "),
        "parts of a Node left out"
    );
}

#[cfg(test)]
mod tests {
    use kube::Config;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIST: &str =
        r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;

    /// Lists no Nodes, accepts every watch, and then sends nothing.
    async fn silent_server(listener: TcpListener) -> Infallible {
        let mut connections = Vec::new();
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(connection.read_u8().await.unwrap());
            }
            let answer = if String::from_utf8_lossy(&head).contains("watch=true") {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
            } else {
                format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{LIST}",
                    LIST.len()
                )
            };
            connection.write_all(answer.as_bytes()).await.unwrap();
            connections.push(connection);
        }
    }

    #[tokio::test]
    async fn an_api_server_that_falls_silent_is_noticed_by_its_silence() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::try_from(Config::new(server.parse().unwrap())).unwrap();
        let (nodes_tx, nodes_rx) = tokio::sync::watch::channel(WatchedNodes::default());
        let reading = Reading {
            edges: "culvert.dev/edge".parse().unwrap(),
            annotations: Annotations::Ignored,
        };
        let mut watcher = Watcher::new(client, reading, Metrics::default(), nodes_tx);
        watcher.silence = Duration::from_millis(200);
        let mut backoff = backoff();
        let noticed = async {
            tokio::select! {
                Err(error) = watcher.follow(&mut backoff) => error,
                never = silent_server(listener) => match never {},
            }
        };
        let error = timeout(Duration::from_secs(30), noticed)
            .await
            .expect("it is noticed");
        assert!(matches!(error, WatchError::Silent(_)), "{error}");
        assert!(!error.is_gone(), "what was seen stays");
        assert_eq!(
            nodes_rx.borrow().state,
            WatchState::Following,
            "it had begun"
        );
        assert_eq!(watcher.version.as_deref(), Some("7"));
    }
}
