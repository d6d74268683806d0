//! The mutual TLS port: CONNECT, requests to plain HTTP servers of nodes, and the list of nodes,
//! over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use culvert_daemon::chain;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::sockets::strangers::{HandshakePermit, handshake};
use culvert_tunnel::Close;
use http::{Method, Request, Response, StatusCode, Uri};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::request::BadRequest;
use super::{Connect, discovery, http1, http2};
use crate::has_drained;
use crate::http::opened::Opened;
use crate::http::response::{Refusal, text};
use crate::http::{Body, watch};

/// The page for Prometheus' `http_sd_configs`.
const DISCOVERY: &str = "/sd/prometheus";

/// A client that has shown its certificate.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) connect: Connect,
    pub(super) address: SocketAddr,
}

/// What a request asks for.
pub(super) enum Wish {
    /// A connection.
    Tunnel(Destination),
    /// A page.
    Page(Page),
}

pub(super) enum Page {
    /// What the HTTP server there answers.
    Of(Destination),
    /// The nodes, as targets with the ports of this query.
    Targets(String),
}

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
            Err(error) => return self.refused(&address, &error),
        };
        if let Err(error) = culvert_tunnel::tune_relayed(&client) {
            tracing::debug!(%error, "tune a socket");
        }
        let watch = match watch(&client) {
            Ok(watch) => watch,
            Err(error) => return self.refused(&address, &error),
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
            Err(error) => return self.refused(&address, &error),
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

impl Caller {
    /// What a request asks for, or the answer to a bad one.
    pub(super) fn wish<B>(&self, request: &Request<B>) -> Result<Wish, Box<Response<Body>>> {
        wish(request).map_err(|bad| {
            self.connect.refused(&self.address, &bad);
            Box::new(Refusal::from(&bad).response())
        })
    }

    /// Opens a connection. Dropping the future cancels the dial.
    pub(super) async fn open(&self, destination: Destination) -> Result<Opened, Refusal> {
        let client = self.address.to_string();
        let opened = self.connect.open(destination, client).await;
        opened.map_err(|unopened| Refusal::from(&unopened))
    }

    /// The nodes, as targets with the ports of a query.
    pub(super) fn targets(&self, query: &str) -> Response<Body> {
        match discovery::targets(&self.connect.router, query) {
            Ok(json) => text(StatusCode::OK, "application/json", json),
            Err(bad) => text(StatusCode::BAD_REQUEST, "text/plain", format!("{bad}\n")),
        }
    }
}

fn wish<B>(request: &Request<B>) -> Result<Wish, BadRequest> {
    let uri = request.uri();
    if request.method() == Method::CONNECT {
        let authority = uri.authority().map(|authority| authority.as_str());
        let destination = authority.unwrap_or_default().parse();
        return destination.map(Wish::Tunnel).map_err(BadRequest::Target);
    }
    match uri.scheme_str() {
        Some("http") => destination(uri).map(|to| Wish::Page(Page::Of(to))),
        // Over HTTP/2 a request for this port's own page has this port's scheme.
        None | Some("https") if request.method() == Method::GET && uri.path() == DISCOVERY => {
            let query = uri.query().unwrap_or_default();
            Ok(Wish::Page(Page::Targets(query.to_owned())))
        }
        _ => {
            let asked = format!("{} {uri}", request.method());
            Err(BadRequest::NotServed(asked.chars().take(100).collect()))
        }
    }
}

/// The server that a URI such as `http://edge-1:9100/metrics` names.
fn destination(uri: &Uri) -> Result<Destination, BadRequest> {
    let authority = uri.authority().map(|authority| authority.as_str());
    let authority = authority.unwrap_or_default();
    let named = if uri.port().is_some() {
        authority.parse()
    } else {
        format!("{authority}:80").parse()
    };
    named.map_err(BadRequest::Target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_without_a_port_means_port_80() {
        let named =
            |uri: &'static str| destination(&Uri::from_static(uri)).map(|to| to.to_string());
        assert_eq!(named("http://edge-1/metrics").unwrap(), "edge-1:80");
        assert_eq!(named("http://[fd00::1]:9100/").unwrap(), "[fd00::1]:9100");
        assert_eq!(named("http://[fd00::1]/").unwrap(), "[fd00::1]:80");
    }
}
