//! `culvert.directory.v1`: tells the redirectors on this host what the directory says, and every change of it.

use std::pin::Pin;

use anyhow::Result;
use culvert_daemon::Drain;
use culvert_tunnel::proto::directory as proto;
use culvert_tunnel::proto::directory::directory_server::{Directory as Service, DirectoryServer};
use futures_util::Stream;
use tonic::{Request, Response, Status};

use crate::directory::{Directory, Event, NodeView, Routing, Watcher};
use crate::local_socket::{LocalSocket, serve_grpc};

/// Serves redirectors until the drain begins.
pub(crate) async fn serve(socket: LocalSocket, directory: Directory, drain: Drain) -> Result<()> {
    let service = DirectoryServer::new(DirectoryService { directory, drain: drain.clone() });
    serve_grpc(socket, "directory_socket", service, drain).await
}

struct DirectoryService {
    directory: Directory,
    drain: Drain,
}

#[tonic::async_trait]
impl Service for DirectoryService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Update, Status>> + Send>>;

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        tracing::info!(version = version(&request.into_inner()), "redirector watches the directory");
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

/// Of the version only what a version can be goes into the log.
fn version(request: &proto::WatchRequest) -> String {
    request.version.chars().filter(|character| !character.is_control()).take(32).collect()
}

/// An event as it goes over the wire. Pure.
fn update(event: Event) -> proto::Update {
    match event {
        Event::Snapshot { revision, ranges, nodes } => proto::Update {
            revision,
            snapshot: Some(proto::Ranges { vip4: ranges.vip4.to_string(), vip6: ranges.vip6.to_string() }),
            nodes: nodes.iter().map(node).collect(),
            removed: Vec::new(),
        },
        Event::Change(change) => proto::Update {
            revision: change.revision,
            snapshot: None,
            nodes: change.changed.iter().map(node).collect(),
            removed: change.removed.iter().map(ToString::to_string).collect(),
        },
    }
}

fn node(view: &NodeView) -> proto::Node {
    let address = |address: &crate::directory::AddressView| proto::Address {
        ip: address.ip.to_string(),
        routing: routing(address.routing).into(),
        reason: address.reason.clone(),
    };
    proto::Node {
        name: view.name.to_string(),
        addresses: view.addresses.iter().map(address).collect(),
        vip4: view.vip4.to_string(),
        vip6: view.vip6.to_string(),
        ports: view.ports.iter().copied().map(u32::from).collect(),
        online: view.online,
    }
}

fn routing(routing: Routing) -> proto::Routing {
    match routing {
        Routing::Routed => proto::Routing::Routed,
        Routing::Shared => proto::Routing::Shared,
        Routing::Protected => proto::Routing::Protected,
    }
}
