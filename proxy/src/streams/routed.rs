//! A client that is being routed: from the moment that its node is known until its stream ends.

use culvert_daemon::Worker;
use culvert_tunnel::{Early, RelayError, Socket, Stream};

use crate::streams::error::RouteError;
use crate::streams::limits::{ClientKind, Share};
use crate::streams::live::StreamRecord;
use crate::streams::route::{Route, Router};

/// A client on its way to a node. Dropped before its stream has ended, it has left.
pub(crate) struct RoutedClient {
    router: Router,
    route: Route,
    client: ClientKind,
    record: StreamRecord,
    _share: Share,
}

impl RoutedClient {
    pub(crate) fn new(
        router: Router,
        route: Route,
        client: ClientKind,
        record: StreamRecord,
    ) -> Self {
        record.routed_to(&route.target.node);
        Self {
            router,
            route,
            client,
            record,
            _share: None,
        }
    }

    /// The thread on which the client is best served.
    pub(crate) fn worker(&self) -> Option<Worker> {
        self.route.worker()
    }

    /// Opens the client's stream; the first bytes of an `early` one go ahead. Dropping the future
    /// cancels the dial at the agent.
    ///
    /// # Errors
    /// It is recorded already.
    pub(crate) async fn open(&mut self, early: Option<&Socket>) -> Result<Stream, RouteError> {
        let opened = match self.router.share(&self.route, self.client) {
            Ok(share) => {
                self._share = share;
                let early = early.map(|client| Early {
                    client,
                    transferred: self.record.transferred(),
                });
                let number = self.record.number();
                self.router.open(&self.route, number, early).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &opened {
            self.record.not_routed(error);
        }
        opened
    }

    /// Sends what the client said while its stream was being opened, then relays to the end.
    ///
    /// # Errors
    /// It is recorded already.
    pub(crate) async fn relay(
        &mut self,
        stream: &mut Stream,
        pipelined: &[u8],
        socket: &Socket,
    ) -> Result<(), RelayError> {
        let transferred = self.record.transferred();
        if !pipelined.is_empty() {
            stream.send_pipelined(pipelined, transferred);
        }
        let result = stream.relay(socket, transferred).await;
        self.record.relayed(&result);
        result
    }
}
