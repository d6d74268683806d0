//! The pages of `culvert dashboard` on the admin address: what this proxy knows, for browsers.
//!
//! Every client that reaches the port sees what its other pages have, and no more: of a node without a tunnel here
//! whether it is online, and neither connections that failed nor ways to a node. Root and the proxy's
//! own user, who use the control socket too, see all of it on the admin socket.
//!
//! Nothing is gathered until a page is read, and it is forgotten when no page is read any more.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use culvert_daemon::{AdminPages, Readiness};
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::metrics::Metrics;
use culvert_site::answered::Answered;
use culvert_site::board::{Board, SharedBoard};
use culvert_site::cloud_host::{CloudHost, Ready, Redirector, Traffic};
use culvert_site::event::Event;
use culvert_site::host_path::HostPath;
use culvert_site::site::{Site, WatchedAnswer};
use culvert_site::web::{Frame, Source, pages};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::control::{Control, explained_message, most_urgent};
use crate::explain::Dial;
use crate::{debug, observe};

const FOLDER: &str = "/dashboard/";
/// Between two looks of a page.
const SECONDS: u64 = 5;
/// A little less than that: what it finds is new.
const FRESH_FOR: Duration = Duration::from_secs(4);
/// The last values of thousands of nodes take megabytes.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Failed connections that are looked at.
const MAX_FAILURES: usize = 50;
/// In place of a proxy's name.
const ANOTHER_PROXY: &str = "another proxy";
/// What the port says in place of what it leaves out.
const LEFT_OUT: &str = "Not here, because this address does not ask for credentials: `culvert dashboard` \
    shows it, and so does this page on the proxy's admin socket.";

/// The pages, for two kinds of readers.
pub struct Dashboard {
    port: Shown,
    socket: Shown,
}

impl Dashboard {
    /// What this proxy knows.
    pub fn new(control: Control, readiness: Readiness, metrics: Metrics) -> Self {
        let content = Arc::new(Content {
            control,
            readiness,
            metrics,
        });
        Self {
            port: Shown::to(Reader::Anyone, &content),
            socket: Shown::to(Reader::Owner, &content),
        }
    }

    /// The folder.
    pub fn pages(&self) -> AdminPages {
        AdminPages::new().folder(
            FOLDER,
            "for browsers: what is wrong, nodes, connections",
            self.port.pages(),
            self.socket.pages(),
        )
    }

    /// Forgets what is not read any more. Runs for ever.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub async fn forget_unwatched(self) -> Result<()> {
        loop {
            sleep(FORGET_AFTER).await;
            self.port.forget_unwatched().await;
            self.socket.forget_unwatched().await;
        }
    }
}

/// Who reads a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Any client that reaches the port.
    Anyone,
    /// Root, and the proxy's own user.
    Owner,
}

/// What one kind of readers sees. Clones share it.
#[derive(Clone)]
struct Shown {
    reader: Reader,
    content: Arc<Content>,
    board: SharedBoard,
    /// When the board was renewed.
    renewed: Arc<Mutex<Option<Instant>>>,
}

impl Shown {
    fn to(reader: Reader, content: &Arc<Content>) -> Self {
        Self {
            reader,
            content: content.clone(),
            board: SharedBoard::default(),
            renewed: Arc::default(),
        }
    }

    fn pages(&self) -> Router {
        let left_out = match self.reader {
            Reader::Anyone => Some(LEFT_OUT),
            Reader::Owner => None,
        };
        let frame = Frame {
            seconds: SECONDS,
            asked: "this proxy alone".to_owned(),
            left_out,
        };
        pages(self.clone(), self.board.clone(), frame)
    }

    fn renew(&self) {
        let site = self.content.site(self.reader);
        self.board.lock().record(site, std::time::Instant::now());
    }

    async fn forget_unwatched(&self) {
        let mut renewed = self.renewed.lock().await;
        if renewed.is_some_and(|at| at.elapsed() >= FORGET_AFTER) {
            *renewed = None;
            *self.board.lock() = Board::default();
        }
    }
}

impl Source for Shown {
    /// Readers at the same time wait for one of them.
    async fn refresh(&self) {
        let mut renewed = self.renewed.lock().await;
        if renewed.is_some_and(|at| at.elapsed() < FRESH_FOR) {
            return;
        }
        let shown = self.clone();
        match spawn_blocking(move || shown.renew()).await {
            Ok(()) => *renewed = Some(Instant::now()),
            Err(error) => tracing::warn!(%error, "the page for browsers cannot be made"),
        }
    }

    async fn ways(&self, node: &str) -> Vec<HostPath> {
        match self.reader {
            Reader::Anyone => Vec::new(),
            Reader::Owner => self.content.ways(node).await,
        }
    }
}

/// All that is shown.
struct Content {
    control: Control,
    readiness: Readiness,
    metrics: Metrics,
}

impl Content {
    fn site(&self, reader: Reader) -> Site {
        let mut answer = WatchedAnswer {
            host: self.host(),
            failures: self.failures(),
            traffic: self.traffic(),
        };
        match reader {
            Reader::Anyone => leave_out(&mut answer),
            Reader::Owner => {}
        }
        let answered = Answered {
            host: self.control.own.host.clone(),
            answer: Ok(answer),
        };
        Site::of(vec![answered], UnixTime::now().seconds())
    }

    fn host(&self) -> CloudHost {
        let control = &self.control;
        let mut nodes = Vec::new();
        for node in control.directory.nodes() {
            nodes.push(control.known_status(node));
        }
        let mut tunnels = Vec::new();
        for registered in control.registry.all() {
            tunnels.push(debug::tunnel(&registered));
        }
        let streams = most_urgent(control.streams.all());
        CloudHost {
            proxies: control.proxies(),
            nodes,
            note: control.staleness().unwrap_or_default(),
            streams: streams.streams,
            streams_left_out: streams.left_out,
            certificates: control.certificates(),
            tunnels,
            ready: Ready {
                missing: lines(self.readiness.missing()),
                remarks: lines(self.readiness.remarks()),
            },
            redirector: Redirector::NotAsked,
        }
    }

    fn failures(&self) -> Vec<Event> {
        let streams = self.control.streams.streams().clone();
        let mut failures = Vec::new();
        for event in observe::last_failures(streams, MAX_FAILURES) {
            failures.push(Event::of(&self.control.own.host, event));
        }
        failures
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            to_backend: self.metrics.transferred.into_tunnel(),
            to_client: self.metrics.transferred.out_of_tunnel(),
            ended: self.metrics.ended_streams(),
        }
    }

    /// Nothing is dialled.
    async fn ways(&self, node: &str) -> Vec<HostPath> {
        // What is no name is no node's.
        let Ok(explained) = self.control.explainer.explain(node, Dial::No).await else {
            return Vec::new();
        };
        let explained = explained_message(explained);
        let mut path = HostPath {
            host: self.control.own.host.clone(),
            reachable: explained.reachable,
            no_node: explained.no_node,
            ..HostPath::default()
        };
        path.add_proxy(explained.lines);
        vec![path]
    }
}

/// What no other page of the port has.
fn leave_out(answer: &mut WatchedAnswer) {
    answer.failures.clear();
    answer.host.certificates.clear();
    for proxy in &mut answer.host.proxies {
        proxy.certificate_ends = 0;
    }
    for node in &mut answer.host.nodes {
        node.elsewhere.truncate(1);
        for proxy in &mut node.elsewhere {
            ANOTHER_PROXY.clone_into(proxy);
        }
    }
}

fn lines(parts: Vec<(&str, String)>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, text) in parts {
        lines.push(format!("{name}: {text}"));
    }
    lines
}

#[cfg(test)]
mod tests;
