//! The mutual TLS port: CONNECT, requests to plain HTTP servers of nodes, and the list of nodes,
//! over HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use culvert_daemon::chain;
use culvert_tunnel::Close;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use rustls::ServerConfig;
use tokio::net::TcpStream;

use super::request::BadRequest;
use super::response::Refusal;
use super::{Connect, discovery, http1, http2, plain_http, watch};
use crate::clients::has_drained;
use crate::directory::Destination;
use crate::sockets::strangers::{HandshakePermit, handshake};

/// The page for Prometheus' `http_sd_configs`.
const DISCOVERY: &str = "/sd/prometheus";

pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

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
    /// Serves a client of the mutual TLS port on the calling task's thread. The client takes `permit` until it has shown its
    /// certificate.
    pub(crate) async fn serve_tls(
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
            Box::new(Refusal::bad_request(&bad).response())
        })
    }

    /// The answer to a request that asks for a page.
    pub(super) async fn answer<B>(&self, page: Page, request: Request<B>) -> Response<Body>
    where
        B: hyper::body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        match page {
            Page::Of(destination) => {
                let passed = Box::pin(plain_http::pass_on(self, request, destination)).await;
                passed.unwrap_or_else(|refusal| refusal.response())
            }
            Page::Targets(query) => match discovery::targets(&self.connect.router, &query) {
                Ok(json) => text(StatusCode::OK, "application/json", json),
                Err(bad) => text(StatusCode::BAD_REQUEST, "text/plain", format!("{bad}\n")),
            },
        }
    }
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn wish<B>(request: &Request<B>) -> Result<Wish, BadRequest> {
    let uri = request.uri();
    if request.method() == Method::CONNECT {
        let authority = uri.authority().map(|authority| authority.as_str());
        let destination = authority.unwrap_or_default().parse();
        return destination.map(Wish::Tunnel).map_err(BadRequest::Target);
    }
    match uri.scheme_str() {
        Some("http") => plain_http::destination(uri).map(|to| Wish::Page(Page::Of(to))),
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

/// An answer with a body.
pub(super) fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
