//! `culvert.directory.v1`: sends the directory to the redirectors on this host, followed by every
//! change, and says whether their DaemonSet has been deleted.

use std::pin::Pin;

use anyhow::Result;
use culvert_api::proto::directory as proto;
use culvert_api::proto::directory::directory_server::{Directory as Service, DirectoryServer};
use culvert_daemon::Drain;
use culvert_proxy_core::daemon_set::DaemonSetStatus;
use culvert_proxy_core::directory::{
    AddressView, BehindView, Clouds, Directory, Event, NodeView, Watcher,
};
use culvert_proxy_streams::sockets::local_grpc;
use culvert_proxy_streams::sockets::local_socket::LocalSocket;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// Serves redirectors until the drain begins.
pub fn serve(
    socket: LocalSocket,
    directory: Directory,
    daemon_set: watch::Receiver<DaemonSetStatus>,
    drain: Drain,
) -> BoxFuture<'static, Result<()>> {
    let service = DirectoryServer::new(DirectoryService {
        directory,
        daemon_set,
        drain: drain.clone(),
    });
    Box::pin(local_grpc::serve(
        socket,
        "directory_socket",
        service,
        drain,
    ))
}

struct DirectoryService {
    directory: Directory,
    daemon_set: watch::Receiver<DaemonSetStatus>,
    drain: Drain,
}

#[tonic::async_trait]
impl Service for DirectoryService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Update, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<proto::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        tracing::info!(
            version = version(&request.into_inner()),
            "redirector watches the directory"
        );
        let following = (self.directory.watch(), self.drain.clone());
        let updates = futures_util::stream::unfold(following, async |(mut watcher, drain)| {
            let update = next(&mut watcher, &drain).await?;
            Some((Ok(update), (watcher, drain)))
        });
        Ok(Response::new(Box::pin(updates)))
    }

    type WatchDaemonSetStream =
        Pin<Box<dyn Stream<Item = Result<proto::DaemonSetStatus, Status>> + Send>>;

    async fn watch_daemon_set(
        &self,
        _request: Request<proto::WatchDaemonSetRequest>,
    ) -> Result<Response<Self::WatchDaemonSetStream>, Status> {
        let mut status = self.daemon_set.clone();
        // What is known already is sent at once.
        status.mark_changed();
        let following = (status, self.drain.clone());
        let statuses = futures_util::stream::unfold(following, async |(mut status, drain)| {
            let deleted = next_status(&mut status, &drain).await? == DaemonSetStatus::Deleted;
            Some((Ok(proto::DaemonSetStatus { deleted }), (status, drain)))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}

/// The next status that says something: a proxy that started after a deletion has seen no DaemonSet,
/// and must not take back what the one before it said. The deletion often ends the proxy too: what
/// it knows is sent before its drain ends the stream.
async fn next_status(
    status: &mut watch::Receiver<DaemonSetStatus>,
    drain: &Drain,
) -> Option<DaemonSetStatus> {
    loop {
        tokio::select! {
            biased;
            changed = status.changed() => changed.ok()?,
            () = drain.begun() => return None,
        }
        let status = *status.borrow_and_update();
        if status != DaemonSetStatus::NotSeen {
            return Some(status);
        }
    }
}

async fn next(watcher: &mut Watcher, drain: &Drain) -> Option<proto::Update> {
    tokio::select! {
        event = watcher.next() => Some(update(event)),
        () = drain.begun() => None,
    }
}

/// The version without control characters, and not too long: it is logged.
fn version(request: &proto::WatchRequest) -> String {
    let characters = request.version.chars();
    let printable = characters.filter(|character| !character.is_control());
    printable.take(32).collect()
}

/// An event in its wire format. Pure.
fn update(event: Event) -> proto::Update {
    match event {
        Event::Snapshot {
            revision,
            ranges,
            nodes,
            clouds: all,
        } => proto::Update {
            revision,
            snapshot: Some(proto::Ranges {
                vip4: ranges.vip4.to_string(),
                vip6: ranges.vip6.to_string(),
            }),
            nodes: nodes.iter().map(node).collect(),
            removed: Vec::new(),
            clouds: Some(clouds(&all)),
        },
        Event::Change(change) => proto::Update {
            revision: change.revision,
            snapshot: None,
            nodes: change.changed.iter().map(node).collect(),
            removed: change.removed.iter().map(ToString::to_string).collect(),
            clouds: change.clouds.as_ref().map(clouds),
        },
    }
}

fn clouds(clouds: &Clouds) -> proto::Clouds {
    let mut nodes = Vec::new();
    for (name, node) in clouds.iter() {
        nodes.push(proto::CloudNode {
            name: name.to_string(),
            addresses: node.addresses.iter().map(ToString::to_string).collect(),
        });
    }
    proto::Clouds { nodes }
}

fn node(view: &NodeView) -> proto::Node {
    let zone = view.zone.as_ref().map(ToString::to_string);
    proto::Node {
        name: view.name.to_string(),
        addresses: view.addresses.iter().map(address).collect(),
        vip4: view.vip4.to_string(),
        vip6: view.vip6.to_string(),
        ports: view.ports.iter().copied().map(u32::from).collect(),
        online: view.online,
        zone: zone.unwrap_or_default(),
        behind: view.behind.iter().map(behind).collect(),
    }
}

fn address(view: &AddressView) -> proto::Address {
    proto::Address {
        ip: view.ip.to_string(),
        routing: proto::Routing::from(view.routing).into(),
        reason: view.reason.clone(),
    }
}

fn behind(view: &BehindView) -> proto::Behind {
    proto::Behind {
        destination: view.destination.to_string(),
        routing: proto::Routing::from(view.routing).into(),
        reason: view.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use culvert_api::proto::directory::directory_client::DirectoryClient;
    use culvert_proxy_streams::sockets::local_socket::Access;
    use hyper_util::rt::TokioIo;
    use tokio::net::UnixStream;
    use tonic::transport::{Channel, Endpoint};

    use super::*;

    async fn connect(socket: &Path) -> DirectoryClient<Channel> {
        let socket = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://directory");
        DirectoryClient::new(endpoint.connect_with_connector(connector).await.unwrap())
    }

    #[tokio::test]
    async fn a_deletion_of_the_daemon_set_is_said_even_after_the_drain_has_begun() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(&folder.path().join("state"), &[]);
        let at = folder.path().join("directory.sock");
        let socket = LocalSocket::bind(&at, Access::Owner).unwrap();
        let drain = Drain::default();
        let (status_tx, status) = watch::channel(DaemonSetStatus::NotSeen);
        let watched = async {
            let mut client = connect(&at).await;
            let request = proto::WatchDaemonSetRequest {};
            let answer = client.watch_daemon_set(request).await.unwrap();
            let mut statuses = answer.into_inner();
            status_tx.send_replace(DaemonSetStatus::Exists);
            let first = statuses.message().await.unwrap().unwrap();
            status_tx.send_replace(DaemonSetStatus::Deleted);
            drain.start();
            let second = statuses.message().await.unwrap().unwrap();
            assert_eq!((first.deleted, second.deleted), (false, true));
            assert_eq!(statuses.message().await.unwrap(), None);
        };
        let serving = serve(socket, directory, status, drain.clone());
        let (served, ()) = tokio::join!(serving, watched);
        served.unwrap();
    }

    #[tokio::test]
    async fn a_redirector_sees_a_snapshot_then_changes_and_the_end_with_the_drain() {
        let path = tempfile::tempdir().unwrap();
        let edge_1: culvert_api::NodeName = "edge-1".parse().unwrap();
        let directory =
            Directory::for_tests(&path.path().join("state"), std::slice::from_ref(&edge_1));
        let drain = Drain::default();
        let at = path.path().join("directory.sock");
        let socket = LocalSocket::bind(&at, Access::Owner).unwrap();
        let watched = async {
            let request = proto::WatchRequest {
                version: "0.1.0".into(),
            };
            let mut client = connect(&at).await;
            let mut updates = client.watch(request).await.unwrap().into_inner();
            let snapshot = updates.message().await.unwrap().unwrap();
            directory
                .editor()
                .put(&edge_1, vec!["10.0.3.7".parse().unwrap()], vec![9100])
                .unwrap();
            let changed = updates.message().await.unwrap().unwrap();
            directory.editor().remove(&edge_1).unwrap();
            let removed = updates.message().await.unwrap().unwrap();
            drain.start();
            (snapshot, changed, removed, updates.message().await.unwrap())
        };
        let (_, daemon_set) = watch::channel(DaemonSetStatus::Exists);
        let serving = serve(socket, directory.clone(), daemon_set, drain.clone());
        let (served, (snapshot, changed, removed, end)) = tokio::join!(serving, watched);
        served.unwrap();
        let ranges = snapshot.snapshot.unwrap();
        assert_eq!(
            (ranges.vip4.as_str(), ranges.vip6.as_str()),
            ("198.18.0.0/15", "fd00:c::/64")
        );
        assert_eq!(
            (
                snapshot.nodes[0].vip4.as_str(),
                snapshot.nodes[0].vip6.as_str()
            ),
            ("198.18.0.1", "fd00:c::1")
        );
        assert_eq!(
            (changed.snapshot, changed.nodes[0].ports.as_slice()),
            (None, &[9100][..])
        );
        assert_eq!(
            changed.nodes[0].addresses[0].routing(),
            proto::Routing::Routed
        );
        assert_eq!(
            (removed.removed, removed.revision),
            (vec!["edge-1".to_owned()], changed.revision + 1)
        );
        assert_eq!(end, None);
    }
}
