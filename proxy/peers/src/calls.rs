//! What a peer may call at this proxy besides `culvert.peer.v1`: what a follower passes on for its
//! operators, and joins with tokens that only this proxy knows.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use culvert_api::proto::peer::peer_server::PeerServer;
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::body::Body;
use tower::Service;
use tower::util::BoxCloneSyncService;

use super::Peers;
use super::service::PeerService;

/// A gRPC service.
pub type Grpc = BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>;

/// Calls that go to the service of operators. All others are this host's operators' alone.
const FOR_OPERATORS: [&str; 4] = [
    "/culvert.control.v1.Control/CreateToken",
    "/culvert.control.v1.Control/ListTokens",
    "/culvert.control.v1.Control/RevokeToken",
    "/culvert.control.v1.Control/RemoveNode",
];
const JOIN: &str = "/culvert.enroll.v1.Enroll/Join";

/// The services that answer peers' further calls. Neither passes anything on.
#[derive(Clone)]
pub struct Calls {
    /// `culvert.control.v1`; `None`: this proxy follows another one itself.
    pub control: Option<Grpc>,
    /// `culvert.enroll.v1`.
    pub enroll: Grpc,
}

/// All services of the peer port.
#[derive(Clone)]
pub(super) struct Services {
    peer: PeerServer<PeerService>,
    calls: Calls,
}

impl Services {
    pub(super) fn new(peers: Arc<Peers>, calls: Calls) -> Self {
        Self {
            peer: PeerServer::new(PeerService(peers)),
            calls,
        }
    }
}

impl Service<Request<Incoming>> for Services {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = futures_util::future::Either<
        <PeerServer<PeerService> as Service<Request<Incoming>>>::Future,
        <Grpc as Service<Request<Incoming>>>::Future,
    >;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // All services are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        use futures_util::future::Either::{Left, Right};
        let path = request.uri().path();
        match &mut self.calls.control {
            _ if path == JOIN => Right(self.calls.enroll.call(request)),
            Some(control) if FOR_OPERATORS.contains(&path) => Right(control.call(request)),
            // It answers what it does not know with "unimplemented".
            Some(_) | None => Left(self.peer.call(request)),
        }
    }
}
