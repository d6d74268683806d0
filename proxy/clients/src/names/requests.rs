//! HTTP/1.1 on name-routed ports: each request goes to the node that it names, whichever node the
//! one before it went to. Clients keep connections by proxy, or by upstream.

use std::io::Cursor;
use std::net::SocketAddr;

use anyhow::Result;
use bytes::BytesMut;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::live::Frontend;
use culvert_tunnel::{Close, Socket};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::host::{self, MeantPorts};
use super::{Names, Refused, leave, refusal};
use crate::http::opened::{Opened, Unopened};
use crate::http::response::Refusal;
use crate::http::server::{self, Answers, Connection, ServerClosed, last};
use crate::http::{Body, watch};

/// A client of HTTP/1.1.
pub(super) struct Requests {
    pub(super) names: Names,
    pub(super) client: SocketAddr,
    pub(super) ports: MeantPorts,
}

impl Requests {
    /// Serves the client until its connection ends. `head` are its bytes so far.
    pub(super) async fn serve(self, socket: std::net::TcpStream, head: BytesMut) {
        let (socket, watch) = match attach(socket) {
            Ok(attached) => attached,
            Err(error) => return tracing::warn!(%error, "reset: too many sockets"),
        };
        watch.on_close(Close::Reset);
        let served = tokio::select! {
            served = self.serve_all(socket, head) => served,
            failed = watch.failure() => Err(failed.into()),
        };
        match served.map_err(|error| error.downcast::<hyper::Error>()) {
            Ok(()) => {}
            // hyper has answered.
            Err(Ok(error)) if error.is_parse() => {
                self.names
                    .report_refusal(self.client, &Refused::Later(error));
            }
            // It was idle.
            Err(Ok(error)) if error.is_timeout() => return watch.on_close(Close::Finish),
            Err(Ok(error)) => return self.cut(&error.into()),
            Err(Err(error)) => return self.cut(&error),
        }
        leave(&watch).await;
    }

    async fn serve_all(&self, socket: TcpStream, head: BytesMut) -> Result<()> {
        let (from_client, to_client) = tokio::io::split(socket);
        let client = tokio::io::join(Cursor::new(head.freeze()).chain(from_client), to_client);
        // A client that has ended its direction may wait for the answer. One that has left is noticed
        // when it resets what it gets: an answer, or a probe of TCP.
        let mut server = server::builder();
        server.half_close(true);
        server::serve(&server, client, self, &self.names.drain).await
    }

    fn cut(&self, error: &anyhow::Error) {
        tracing::debug!(
            client.addr = %self.client,
            reason = format!("{error:#}"),
            "an HTTP connection to a name-routed port was cut"
        );
    }

    async fn open(&self, destination: &Destination) -> Result<Opened, Refusal> {
        let names = &self.names;
        let routed = names.route_client(Frontend::NameHttp, self.client, destination);
        let opened = match routed {
            Ok(routed) => Opened::stream(routed).await,
            Err(error) => Err(error.into()),
        };
        opened.map_err(|unopened| match &unopened {
            Unopened::Route(error @ RouteError::Resolve(_)) => {
                refusal::unknown(error, names.router.directory(), destination)
            }
            Unopened::Route(_) | Unopened::Socket(_) => Refusal::from(&unopened),
        })
    }
}

impl Answers for Requests {
    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Body>, ServerClosed> {
        match host::named(&request, self.ports) {
            Ok(name) => {
                let destination = Destination::Name(name, self.ports.of_nodes);
                let open = self.open(&destination);
                let passed = connection.pass_on(request, &destination, open).await;
                // A connection that has no stream would be counted for no client.
                passed.or_else(|not_passed| not_passed.response().map(last))
            }
            Err(bad) => {
                let answer = refusal::bad_request(&bad).response();
                self.names.report_refusal(self.client, &bad.into());
                Ok(last(answer))
            }
        }
    }
}

fn attach(socket: std::net::TcpStream) -> std::io::Result<(TcpStream, Socket)> {
    let socket = TcpStream::from_std(socket)?;
    let watch = watch(&socket)?;
    Ok((socket, watch))
}
