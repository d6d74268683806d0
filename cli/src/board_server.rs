//! The pages of a board over HTTP, for browsers of this host. Every answer forbids all that a page
//! does not need, and a request with a foreign host name is refused: a web site whose own name leads
//! here (DNS rebinding) would otherwise read the pages with a visitor's browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use culvert_api::proto::control as proto;

use crate::board::SharedBoard;
use crate::hops::{self, HostPath};
use crate::session::Session;
use crate::web::{Frame, PageQuery, SCRIPT, STYLE, message_page, node_page, site_page};

/// What a page may load: its own style, script and picture, and itself again.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const ICON: &str = include_str!("web/icon.svg");
/// While the first answers are on their way.
const WAITS: &str = "The hosts are being asked. This page shows what they say as soon as they do.";

#[derive(Clone)]
struct Server {
    session: Arc<Session>,
    board: SharedBoard,
    frame: Frame,
}

/// The pages, below a folder whose name is secret.
pub(crate) fn router(
    secret: &str,
    session: Arc<Session>,
    board: SharedBoard,
    frame: Frame,
) -> Router {
    let style = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    let script = (header::CONTENT_TYPE, "text/javascript; charset=utf-8");
    let icon = (header::CONTENT_TYPE, "image/svg+xml");
    let pages = Router::new()
        .route("/", get(site))
        .route("/node/{node}", get(node))
        .route("/style.css", get(async move || ([style], STYLE)))
        .route("/refresh.js", get(async move || ([script], SCRIPT)))
        .route("/icon.svg", get(async move || ([icon], ICON)))
        .with_state(Server {
            session,
            board,
            frame,
        });
    Router::new()
        .nest(&format!("/{secret}/"), pages)
        .fallback(elsewhere)
        .layer(from_fn(guard))
}

async fn elsewhere() -> Response {
    let text = "open the address that `culvert dashboard` has printed\n";
    (StatusCode::NOT_FOUND, text).into_response()
}

/// Refuses foreign names, and limits what an answer may do.
async fn guard(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    let mut answer = match host {
        Some(host) if is_this_host(host.as_bytes()) => next.run(request).await,
        Some(_) | None => {
            let text = "ask for this page as 127.0.0.1 or localhost\n";
            (StatusCode::FORBIDDEN, text).into_response()
        }
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
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

async fn site(
    State(server): State<Server>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    // What is no query is none.
    let query = query.map(|query| query.0).unwrap_or_default();
    let board = server.board.lock();
    let page = match &board.site {
        Some(site) => site_page(site, &board.history, &query, &server.frame),
        None => message_page(&server.frame, "", WAITS),
    };
    Html(page).into_response()
}

async fn node(State(server): State<Server>, Path(name): Path<String>) -> Response {
    // Only names that a proxy has named are asked for.
    if !server.knows(&name) {
        let text = "No node that a proxy knows has this name.";
        let page = message_page(&server.frame, "../", text);
        return (StatusCode::NOT_FOUND, Html(page)).into_response();
    }
    let ways = server.ways(&name).await;
    let board = server.board.lock();
    let known = board.site.as_ref().map(|site| (site, site.node(&name)));
    let page = match known {
        Some((site, Some(node))) => node_page(site, &board.history, node, &ways, &server.frame),
        Some((_, None)) | None => message_page(&server.frame, "../", "This node is gone."),
    };
    Html(page).into_response()
}

impl Server {
    fn knows(&self, node: &str) -> bool {
        let board = self.board.lock();
        let site = board.site.as_ref();
        site.is_some_and(|site| site.node(node).is_some())
    }

    /// What happens to a connection with the node, from every host. Nothing is dialled.
    async fn ways(&self, node: &str) -> Vec<HostPath> {
        let request = proto::ExplainRequest {
            destination: node.to_owned(),
            dial: false,
        };
        hops::ask_all(&self.session, &request).await
    }
}

#[cfg(test)]
mod tests;
