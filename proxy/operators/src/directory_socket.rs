//! `culvert.directory.v1`: sends the directory to the redirectors on this host, followed by every
//! change.

use std::pin::Pin;

use anyhow::Result;
use culvert_api::NodeName;
use culvert_api::proto::directory as proto;
use culvert_api::proto::directory::directory_server::{Directory as Service, DirectoryServer};
use culvert_daemon::Drain;
use culvert_proxy_core::directory::{
    BehindView, CloudNode, Clouds, Directory, Event, NodeView, Watcher,
};
use culvert_proxy_streams::sockets::local_grpc;
use culvert_proxy_streams::sockets::local_socket::LocalSocket;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use tonic::{Request, Response, Status};

/// Serves redirectors until the drain begins.
pub fn serve(
    socket: LocalSocket,
    directory: Directory,
    drain: Drain,
) -> BoxFuture<'static, Result<()>> {
    let service = DirectoryServer::new(DirectoryService {
        directory,
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
}

async fn next(watcher: &mut Watcher, drain: &Drain) -> Option<proto::Update> {
    tokio::select! {
        event = watcher.next() => Some(update(event)),
        () = drain.begun() => None,
    }
}

/// Only characters that a version can have are logged.
fn version(request: &proto::WatchRequest) -> String {
    request
        .version
        .chars()
        .filter(|character| !character.is_control())
        .take(32)
        .collect()
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
    let node = |(name, node): (&NodeName, &CloudNode)| proto::CloudNode {
        name: name.to_string(),
        addresses: node.addresses.iter().map(ToString::to_string).collect(),
    };
    proto::Clouds {
        nodes: clouds.iter().map(node).collect(),
    }
}

fn node(view: &NodeView) -> proto::Node {
    let address = |address: &culvert_proxy_core::directory::AddressView| proto::Address {
        ip: address.ip.to_string(),
        routing: proto::Routing::from(address.routing).into(),
        reason: address.reason.clone(),
    };
    proto::Node {
        name: view.name.to_string(),
        addresses: view.addresses.iter().map(address).collect(),
        vip4: view.vip4.to_string(),
        vip6: view.vip6.to_string(),
        ports: view.ports.iter().copied().map(u32::from).collect(),
        online: view.online,
        zone: view
            .zone
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        behind: view.behind.iter().map(behind).collect(),
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
    use culvert_api::proto::directory::directory_client::DirectoryClient;
    use culvert_proxy_streams::sockets::local_socket::Access;
    use hyper_util::rt::TokioIo;
    use tokio::net::UnixStream;
    use tonic::transport::Endpoint;

    use super::*;

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
            let connector = tower::service_fn(move |_| {
                let at = at.clone();
                async move { UnixStream::connect(at).await.map(TokioIo::new) }
            });
            let channel = Endpoint::from_static("http://directory")
                .connect_with_connector(connector)
                .await
                .unwrap();
            let request = proto::WatchRequest {
                version: "0.1.0".into(),
            };
            let mut updates = DirectoryClient::new(channel)
                .watch(request)
                .await
                .unwrap()
                .into_inner();
            let snapshot = updates.message().await.unwrap().unwrap();
            directory
                .editor()
                .put(&edge_1, vec!["10.0.3.7".parse().unwrap()], vec![9100])
                .unwrap();
            let changed = updates.message().await.unwrap().unwrap();
            directory.editor().remove(&edge_1).unwrap();
            let removed = updates.message().await.unwrap().unwrap();
            drain.begin();
            (snapshot, changed, removed, updates.message().await.unwrap())
        };
        let (served, (snapshot, changed, removed, end)) =
            tokio::join!(serve(socket, directory.clone(), drain.clone()), watched);
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
