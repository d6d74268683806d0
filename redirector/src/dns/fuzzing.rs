//! Entry point of the DNS fuzz target (`fuzz/`): takes a datagram and returns the answer, without
//! sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use hickory_proto::op::MessageType;
use hickory_server::net::BufDnsStreamHandle;
use hickory_server::net::runtime::TokioTime;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::{Request, RequestHandler, ResponseHandle};
use tokio::sync::watch;

use super::Origin;
use super::clients::Clients;
use super::handler::{Handler, SharedHandler};
use super::{MIN_PAYLOAD, UDP_PAYLOAD};
use crate::config::NodeIps;
use crate::directory::{Feed, examples};
use crate::metrics::DnsMetrics;

/// A DNS server without sockets, for the nodes of a small directory.
pub struct Dns {
    handler: Arc<Handler>,
    /// Keeps the handler's receiver open.
    _feed: watch::Sender<Feed>,
}

/// The answers to a query.
#[derive(Debug)]
pub struct Answered {
    /// The answer over UDP.
    pub udp: Vec<u8>,
    /// The answer over TCP.
    pub tcp: Vec<u8>,
    /// Longest UDP answer that the client accepts.
    pub room: usize,
}

impl Default for Dns {
    fn default() -> Self {
        let node = NodeIps {
            v4: "10.9.0.1".parse().ok(),
            v6: "fd09::1".parse().ok(),
        };
        let feed = Feed {
            directory: Some(Arc::new(examples::directory())),
            stale: None,
        };
        let (feed_tx, feed) = watch::channel(feed);
        let clients = Clients::new(Vec::new());
        let origin = Origin::try_from(&"edge.internal".parse().expect("a zone")).expect("a name");
        let handler = Arc::new(Handler::new(
            origin,
            clients,
            node,
            feed,
            DnsMetrics::default(),
        ));
        Self {
            handler,
            _feed: feed_tx,
        }
    }
}

impl Dns {
    /// The answers to a query; `None` for other messages, which hickory's server drops or answers
    /// by itself.
    ///
    /// # Panics
    /// If a query is not answered at once.
    #[must_use]
    pub fn answer(&self, query: &[u8]) -> Option<Answered> {
        let client = SocketAddr::from(([127, 0, 0, 1], 4053));
        let request = Request::from_bytes(query.to_vec(), client, Protocol::Udp).ok()?;
        if request.metadata.message_type == MessageType::Response {
            return None;
        }
        let asked = request
            .edns
            .as_ref()
            .map_or(MIN_PAYLOAD, |edns| edns.max_payload());
        let room = usize::from(asked.clamp(MIN_PAYLOAD, UDP_PAYLOAD));
        let (stream, mut sent) = BufDnsStreamHandle::new(client);
        let handle = ResponseHandle::new(client, stream, Protocol::Udp);
        let shared = SharedHandler(Arc::clone(&self.handler));
        shared
            .handle_request::<_, TokioTime>(&request, handle)
            .now_or_never()
            .expect("nothing to wait for");
        let (udp, _) = sent
            .next()
            .now_or_never()
            .flatten()
            .expect("every query is answered")
            .into_parts();
        let tcp = self
            .handler
            .respond(&request)
            .now_or_never()
            .flatten()
            .expect("every query is answered");
        Some(Answered { udp, tcp, room })
    }
}
