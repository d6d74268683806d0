//! The pages of a board over HTTP, for browsers of this host. A request with a foreign host name is
//! refused: a web site whose own name leads here (DNS rebinding) would otherwise read the pages with a
//! visitor's browser.

use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use culvert_api::proto::control as proto;
use culvert_site::board::SharedBoard;
use culvert_site::host_path::HostPath;
use culvert_site::web::{Frame, Source, pages, restrict};

use crate::hops;
use crate::session::Session;

/// Whom pages ask. The board is renewed by itself.
struct AllHosts(Arc<Session>);

impl Source for AllHosts {
    fn refresh(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    async fn ways(&self, node: &str) -> Vec<HostPath> {
        let request = proto::ExplainRequest {
            destination: node.to_owned(),
            dial: false,
        };
        hops::ask_all(&self.0, &request).await
    }
}

/// The pages, below a folder whose name is secret.
pub(crate) fn router(
    secret: &str,
    session: Arc<Session>,
    board: SharedBoard,
    frame: Frame,
) -> Router {
    let pages = Router::new()
        .nest(
            &format!("/{secret}/"),
            pages(AllHosts(session), board, frame),
        )
        .fallback(elsewhere)
        .layer(from_fn(refuse_foreign_names));
    restrict(pages)
}

async fn elsewhere() -> Response {
    let text = "open the address that `culvert dashboard` has printed\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn refuse_foreign_names(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    match host {
        Some(host) if is_this_host(host.as_bytes()) => next.run(request).await,
        Some(_) | None => {
            let text = "ask for this page as 127.0.0.1 or localhost\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
    }
}

/// Whether a host is `localhost` or an address of loopback, with whatever port: it may be forwarded.
fn is_this_host(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else {
        return false;
    };
    let host = authority.host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    }
}

#[cfg(test)]
mod tests;
