//! A client that is being routed, from the resolution of its node until the end of its stream.

use std::time::Instant;

use culvert_daemon::Worker;
use culvert_tunnel::{EarlyClient, RelayError, Socket, Stream};

use crate::error::RouteError;
use crate::limits::{ClientKind, Share};
use crate::live::StreamRecord;
use crate::registry::{StreamOnItsWay, Tracking};
use crate::rerouted::rerouted;
use crate::route::{OpenedStream, Route, Router};

/// A client on its way to a node. If it is dropped before its stream has ended, it counts as left.
pub struct RoutedClient {
    router: Router,
    route: Route,
    client: ClientKind,
    record: StreamRecord,
    /// Counts the stream at its tunnels until it begins to open.
    on_its_way: Option<StreamOnItsWay>,
    /// The client's share of the node's streams, from the open on until this is dropped.
    share: Share,
    /// `None` until its stream is open.
    tracking: Option<Tracking>,
}

impl RoutedClient {
    /// A client whose route is chosen.
    pub fn new(router: Router, route: Route, client: ClientKind, record: StreamRecord) -> Self {
        record.set_node(&route.target.node);
        let on_its_way = StreamOnItsWay::of(&route.candidates);
        Self {
            router,
            route,
            client,
            record,
            on_its_way,
            share: None,
            tracking: None,
        }
    }

    /// The worker thread on which the client is best served.
    pub fn worker(&self) -> Option<Worker> {
        self.route.worker()
    }

    /// Opens the client's stream. The first bytes of an `early` client are sent along. Dropping the
    /// future cancels the dial at the agent.
    ///
    /// # Errors
    ///
    /// The stream cannot be opened; this is already recorded.
    pub async fn open(&mut self, early: Option<&Socket>) -> Result<Stream, RouteError> {
        self.on_its_way = None;
        let opened = match self.router.share(&self.route, self.client) {
            Ok(share) => {
                self.share = share;
                let early = early.map(|client| EarlyClient {
                    client,
                    transferred: self.record.transferred(),
                });
                let number = self.record.number();
                let started = Instant::now();
                let opened = self.router.open(&self.route, number, early).await;
                self.record.set_dial_time(started.elapsed());
                opened
            }
            Err(error) => Err(error),
        };
        match opened {
            Ok(OpenedStream { stream, candidate }) => {
                let registry = self.router.registry();
                let node = &self.route.target.node;
                let movable = stream.movable();
                self.tracking = Some(self.record.track(registry, node, candidate, movable));
                Ok(stream)
            }
            Err(error) => {
                self.record.record_refusal(&error);
                Err(error)
            }
        }
    }

    /// Sends bytes that the client sent before its stream was open.
    pub fn send_first(&self, stream: &mut Stream, bytes: &[u8]) {
        if !bytes.is_empty() {
            stream.send_pipelined(bytes, self.record.transferred());
        }
    }

    /// Sends the bytes that the client sent while its stream was being opened, then relays until
    /// the end.
    ///
    /// # Errors
    ///
    /// The relay failed; this is already recorded.
    pub async fn relay(
        &mut self,
        stream: &mut Stream,
        pipelined: &[u8],
        socket: &Socket,
    ) -> Result<(), RelayError> {
        self.send_first(stream, pipelined);
        let result = tokio::select! {
            relayed = stream.relay(socket, self.record.transferred()) => relayed,
            () = rerouted(&self.route, self.router.directory()) => Err(RelayError::Moved),
        };
        self.record.record_end(&result);
        result
    }
}
