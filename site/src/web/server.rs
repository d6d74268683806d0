//! The pages over HTTP.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::layout::{Frame, message_page};
use super::node_page::node_page;
use super::query::PageQuery;
use super::site_page::site_page;
use crate::board::SharedBoard;
use crate::host_path::HostPath;

const STYLE: &str = include_str!("style.css");
/// Replaces the content of a page.
const SCRIPT: &str = include_str!("refresh.js");
const ICON: &str = include_str!("icon.svg");
/// What a page may load: its own style, script and picture, and itself again.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// While the first answers are on their way.
const WAITS: &str = "The hosts are being asked. This page shows what they say as soon as they do.";
/// Pages that are made at once: one takes a processor, and tens of milliseconds.
const MADE_AT_ONCE: usize = 1;

/// Where the content of pages comes from.
pub trait Source: Send + Sync + 'static {
    /// Has the board show the present, before it is shown.
    fn refresh(&self) -> impl Future<Output = ()> + Send;

    /// What happens to a connection with a node, from every host. Nothing is dialled.
    fn ways(&self, node: &str) -> impl Future<Output = Vec<HostPath>> + Send;
}

struct Server<S> {
    source: S,
    board: SharedBoard,
    frame: Frame,
    maker: Arc<Semaphore>,
}

/// Whether there is such a page.
enum Made {
    Page(String),
    NoSuchNode(String),
}

/// The pages, with paths relative to a folder.
pub fn pages<S: Source>(source: S, board: SharedBoard, frame: Frame) -> Router {
    let style = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    let script = (header::CONTENT_TYPE, "text/javascript; charset=utf-8");
    let icon = (header::CONTENT_TYPE, "image/svg+xml");
    let server = Server {
        source,
        board,
        frame,
        maker: Arc::new(Semaphore::new(MADE_AT_ONCE)),
    };
    let pages = Router::new()
        .route("/", get(show_site::<S>))
        .route("/node/{node}", get(show_node::<S>))
        .route("/style.css", get(async move || ([style], STYLE)))
        .route("/refresh.js", get(async move || ([script], SCRIPT)))
        .route("/icon.svg", get(async move || ([icon], ICON)))
        .with_state(Arc::new(server));
    restrict(pages)
}

/// Every answer forbids all that a page does not need.
pub fn restrict(pages: Router) -> Router {
    pages.layer(from_fn(forbid))
}

async fn forbid(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
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

async fn show_site<S: Source>(
    State(server): State<Arc<Server<S>>>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    // What is no query is none.
    let Query(query) = query.unwrap_or_default();
    server.source.refresh().await;
    server
        .clone()
        .answer(move || Made::Page(server.site_page(&query)))
        .await
}

async fn show_node<S: Source>(
    State(server): State<Arc<Server<S>>>,
    Path(name): Path<String>,
) -> Response {
    server.source.refresh().await;
    // Only names that a proxy has named are asked for.
    let mut ways = Vec::new();
    if server.knows(&name).await {
        ways = server.source.ways(&name).await;
    }
    server
        .clone()
        .answer(move || server.node_page(&name, &ways))
        .await
}

impl<S: Source> Server<S> {
    /// Makes a page on a separate thread: one of thousands of nodes delays no other work.
    async fn answer(self: Arc<Self>, make: impl FnOnce() -> Made + Send + 'static) -> Response {
        let permit = self.maker.clone().acquire_owned().await;
        let made = spawn_blocking(move || {
            let _permit = permit;
            make()
        });
        match made.await {
            Ok(Made::Page(page)) => Html(page).into_response(),
            Ok(Made::NoSuchNode(page)) => (StatusCode::NOT_FOUND, Html(page)).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        }
    }

    async fn knows(&self, node: &str) -> bool {
        // A page that is being made holds the lock.
        let _permit = self.maker.acquire().await;
        let board = self.board.lock();
        let site = board.site.as_ref();
        site.is_some_and(|site| site.node(node).is_some())
    }

    fn site_page(&self, query: &PageQuery) -> String {
        let board = self.board.lock();
        match &board.site {
            Some(site) => site_page(site, &board.history, query, &self.frame),
            None => message_page(&self.frame, "", WAITS),
        }
    }

    fn node_page(&self, name: &str, ways: &[HostPath]) -> Made {
        let board = self.board.lock();
        if let Some(site) = &board.site
            && let Some(node) = site.node(name)
        {
            return Made::Page(node_page(site, &board.history, node, ways, &self.frame));
        }
        let text = "No node that a proxy knows has this name.";
        Made::NoSuchNode(message_page(&self.frame, "../", text))
    }
}

#[cfg(test)]
mod tests;
