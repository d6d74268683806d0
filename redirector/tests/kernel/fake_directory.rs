//! A fake of the proxy's `Directory` service.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use culvert_api::proto::directory::directory_server::{Directory, DirectoryServer};
use culvert_api::proto::directory::{
    Address, DaemonSetStatus, Node, Ranges, Routing, Update, WatchDaemonSetRequest, WatchRequest,
};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status};

/// Serves until it is dropped.
pub(crate) struct FakeDirectory {
    state: Arc<Mutex<State>>,
    daemon_set_tx: watch::Sender<DaemonSetStatus>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    revision: u64,
    nodes: Vec<Node>,
    watchers: Vec<mpsc::Sender<Result<Update, Status>>>,
}

struct Service {
    state: Arc<Mutex<State>>,
    daemon_set: watch::Receiver<DaemonSetStatus>,
}

/// A node with one VIP of each family.
pub(crate) fn node(name: &str, number: u8, addresses: &[&str], online: bool) -> Node {
    let address = |ip: &&str| Address {
        ip: (*ip).to_owned(),
        routing: Routing::Routed.into(),
        reason: String::new(),
    };
    Node {
        name: name.to_owned(),
        addresses: addresses.iter().map(address).collect(),
        vip4: format!("198.18.0.{number}"),
        vip6: format!("fd12:3456:789a:bcde::{number}"),
        ports: vec![9100, 10250],
        online,
        zone: String::new(),
        behind: Vec::new(),
    }
}

/// The nodes of most tests: edge-1 is online, edge-2 is not.
pub(crate) fn usual_nodes() -> Vec<Node> {
    vec![
        node("edge-1", 1, &["10.0.3.7", "fd00::7"], true),
        node("edge-2", 2, &["10.0.3.8"], false),
    ]
}

impl FakeDirectory {
    pub(crate) fn serve(socket: &Path, nodes: Vec<Node>) -> Self {
        let state = Arc::new(Mutex::new(State {
            revision: 1,
            nodes,
            watchers: Vec::new(),
        }));
        let (stop, stopped) = oneshot::channel::<()>();
        let socket = socket.to_owned();
        let daemon_set_tx = watch::Sender::default();
        let service = Service {
            state: Arc::clone(&state),
            daemon_set: daemon_set_tx.subscribe(),
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                if socket.exists() {
                    std::fs::remove_file(&socket).unwrap();
                }
                let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
                let server =
                    tonic::transport::Server::builder().add_service(DirectoryServer::new(service));
                tokio::select! {
                    served = server.serve_with_incoming(incoming) => served.unwrap(),
                    _stop = stopped => {}
                }
            });
        });
        Self {
            state,
            daemon_set_tx,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Says whether the DaemonSet of redirectors has been deleted.
    pub(crate) fn set_daemon_set(&self, status: DaemonSetStatus) {
        self.daemon_set_tx.send_replace(status);
    }

    /// Sends a delta.
    pub(crate) fn change(&self, nodes: Vec<Node>, removed: &[&str]) {
        let mut state = self.state.lock();
        state.revision += 1;
        let removed = removed.iter().map(|name| (*name).to_owned()).collect();
        let update = Update {
            revision: state.revision,
            nodes,
            removed,
            ..Update::default()
        };
        state
            .watchers
            .retain(|watcher| watcher.blocking_send(Ok(update.clone())).is_ok());
    }
}

impl Drop for FakeDirectory {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

type DaemonSetStatuses =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<DaemonSetStatus, Status>> + Send>>;

#[tonic::async_trait]
impl Directory for Service {
    type WatchStream = ReceiverStream<Result<Update, Status>>;

    async fn watch(
        &self,
        _request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (update_tx, update_rx) = mpsc::channel(16);
        let mut state = self.state.lock();
        let ranges = Ranges {
            vip4: "198.18.0.0/15".to_owned(),
            vip6: "fd12:3456:789a:bcde::/64".to_owned(),
        };
        let snapshot = Update {
            revision: state.revision,
            snapshot: Some(ranges),
            nodes: state.nodes.clone(),
            ..Update::default()
        };
        update_tx.try_send(Ok(snapshot)).unwrap();
        state.watchers.push(update_tx);
        Ok(Response::new(ReceiverStream::new(update_rx)))
    }

    type WatchDaemonSetStream = DaemonSetStatuses;

    async fn watch_daemon_set(
        &self,
        _request: Request<WatchDaemonSetRequest>,
    ) -> Result<Response<Self::WatchDaemonSetStream>, Status> {
        let statuses = WatchStream::new(self.daemon_set.clone());
        Ok(Response::new(Box::pin(statuses.map(Ok))))
    }
}
