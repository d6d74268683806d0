//! HTTP/1.1 on the mutual TLS port.

use anyhow::Result;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::caller::{Caller, Page, Requested};
use crate::http::Body;
use crate::http::server::{self, Answers, Connection, NotPassed, ServerClosed, last, nothing};

/// Serves the client until its connection ends.
pub(super) async fn serve(caller: &Caller, tls: TlsStream<TcpStream>) -> Result<()> {
    server::serve(&server::builder(), tls, caller, &caller.connect.drain).await
}

impl Answers for Caller {
    async fn answer(
        &self,
        mut request: Request<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Body>, ServerClosed> {
        let destination = match self.requested(&request) {
            Ok(Requested::Tunnel(destination)) => destination,
            Ok(Requested::Page(Page::Targets(query))) => return Ok(self.targets(&query)),
            Ok(Requested::Page(Page::Of(destination))) => {
                let open = self.open(destination.clone());
                let passed = Box::pin(connection.pass_on(request, &destination, open)).await;
                return passed.or_else(NotPassed::response);
            }
            Err(bad) => return Ok(last(*bad)),
        };
        let upgrade = hyper::upgrade::on(&mut request);
        match self.open(destination).await {
            Ok(opened) => {
                connection.become_tunnel(upgrade, opened, Bytes::new());
                Ok(established())
            }
            Err(refusal) => Ok(last(refusal.response())),
        }
    }
}

fn established() -> Response<Body> {
    let mut response = Response::new(nothing());
    let phrase = ReasonPhrase::from_static(b"Connection Established");
    response.extensions_mut().insert(phrase);
    response
}
