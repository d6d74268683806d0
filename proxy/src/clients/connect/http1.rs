//! HTTP/1.1 on the mutual TLS port. A connection serves any number of requests, and becomes a
//! tunnel with the first CONNECT.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::bridge::bridge;
use super::opened::Opened;
use super::request::HEAD_MAX;
use super::response::Refusal;
use super::tls_port::{Body, Caller, Wish};
use crate::clients::has_drained;

/// The time for a request's head, and how long a connection may be idle between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// What a connection becomes after the answer to a CONNECT.
type Tunnel = Mutex<Option<(OnUpgrade, Opened)>>;

/// Serves the client until its connection ends.
pub(super) async fn serve(caller: &Caller, tls: TlsStream<TcpStream>) -> Result<()> {
    let tunnel = Tunnel::default();
    let service =
        service_fn(|request| async { Ok::<_, Infallible>(answer(caller, request, &tunnel).await) });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_MAX)
        .auto_date_header(false);
    {
        let served = server.serve_connection(TokioIo::new(tls), service);
        let mut served = pin!(served.with_upgrades());
        let ended = tokio::select! {
            ended = &mut served => ended,
            () = has_drained(&caller.connect.drain) => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        ended.context("HTTP/1.1")?;
    }
    let tunnel = tunnel
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((upgrade, opened)) = tunnel {
        let client = TokioIo::new(upgrade.await.context("become a tunnel")?);
        bridge(opened, client).await?;
    }
    Ok(())
}

async fn answer(
    caller: &Caller,
    mut request: Request<Incoming>,
    tunnel: &Tunnel,
) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    let destination = match caller.wish(&request) {
        Ok(Wish::Tunnel(destination)) => destination,
        Ok(Wish::Page(page)) => return caller.answer(page, request).await,
        Err(bad) => return last(*bad),
    };
    match caller
        .connect
        .open(destination, caller.address.to_string())
        .await
    {
        Ok(opened) => {
            let mut tunnel = tunnel
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            *tunnel = Some((upgrade, opened));
            established()
        }
        Err(unopened) => last(Refusal::from(&unopened).response()),
    }
}

/// The connection ends with this answer, as on the Unix socket.
fn last(mut answer: Response<Body>) -> Response<Body> {
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(CONNECTION, close);
    answer
}

fn established() -> Response<Body> {
    let nothing = Empty::new().map_err(|never| match never {});
    let mut response = Response::new(nothing.boxed_unsync());
    let phrase = ReasonPhrase::from_static(b"Connection Established");
    response.extensions_mut().insert(phrase);
    response
}
