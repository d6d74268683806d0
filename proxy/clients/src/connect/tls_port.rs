//! The mutual TLS port: CONNECT, requests to plain HTTP servers of nodes, and the list of nodes,
//! over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_daemon::chain;
use culvert_proxy_streams::sockets::strangers::{HandshakePermit, handshake};
use culvert_tunnel::Close;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::caller::Caller;
use super::{Connect, http1, http2};
use crate::has_drained;
use crate::http::watch;

impl Connect {
    /// Serves a client of the mutual TLS port, in a task among `connections`. The client takes
    /// `permit` until it has shown its certificate.
    pub fn serve_tls(
        self,
        tls: Arc<ServerConfig>,
        client: std::net::TcpStream,
        address: SocketAddr,
        permit: HandshakePermit,
        connections: &TaskTracker,
    ) {
        let worker = self.workers.next();
        let served = self.tls_client(tls, client, address, permit);
        connections.spawn_on(served, worker.handle());
    }

    async fn tls_client(
        self,
        tls: Arc<ServerConfig>,
        client: std::net::TcpStream,
        address: SocketAddr,
        mut permit: HandshakePermit,
    ) {
        let client = match TcpStream::from_std(client) {
            Ok(client) => client,
            Err(error) => return self.report_refusal(&address, &error),
        };
        if let Err(error) = culvert_tunnel::tune_relayed(&client) {
            tracing::debug!(%error, "tune a socket");
        }
        let watch = match watch(&client) {
            Ok(watch) => watch,
            Err(error) => return self.report_refusal(&address, &error),
        };
        let evicted = permit.evicted();
        let accepted = tokio::select! {
            accepted = handshake(client, tls, &mut permit) => accepted,
            () = evicted.cancelled() => return,
            () = has_drained(&self.drain) => return,
        };
        drop(permit);
        let tls = match accepted {
            Ok(tls) => tls,
            Err(error) => return self.report_refusal(&address, &error),
        };
        // If the connection ends before all bytes are sent, it is reset, without close_notify.
        watch.on_close(Close::Reset);
        let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let connect = self;
        let caller = Caller { connect, address };
        // Boxed, because few clients take this path, and every other client would need the memory
        // too.
        let served = async {
            if is_http2 {
                Box::pin(http2::serve(&caller, tls)).await
            } else {
                Box::pin(http1::serve(&caller, tls)).await
            }
        };
        let served = tokio::select! {
            served = served => served,
            failed = watch.failure() => Err(failed.into()),
        };
        match served {
            Ok(()) => watch.on_close(Close::Finish),
            Err(error) => tracing::debug!(
                client.addr = %address,
                reason = chain(&*error),
                "a connection of the CONNECT port was cut"
            ),
        }
    }
}
