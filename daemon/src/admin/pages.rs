//! The pages of an admin server: liveness, readiness, metrics, the log filter, and the binary's own
//! `/debug` pages.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, put};
use axum::{Json, Router};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::admin_pages::{AdminPages, Listener};
use crate::foreign_names::refuse_foreign_names;
use crate::process_metrics;
use crate::{Logs, Readiness};

/// Longest accepted log filter. A filter is one line, so a longer body is a mistake.
pub(super) const LOG_FILTER_BYTES: usize = 4096;

/// What the pages of every program read.
#[derive(Clone)]
pub(super) struct PageState {
    readiness: Readiness,
    /// The program's own, and those of its process: the program's may have a prefix.
    registries: Arc<[Registry; 2]>,
}

impl PageState {
    pub(super) fn new(readiness: Readiness, registry: Registry) -> Self {
        let mut process = Registry::default();
        process_metrics::register(&mut process);
        Self {
            readiness,
            registries: Arc::new([registry, process]),
        }
    }
}

/// The pages of the socket.
pub(super) fn socket_pages(
    program: &str,
    state: &PageState,
    debug: &AdminPages,
    logs: Logs,
) -> Router {
    let log = AdminPages::new().page(
        "/debug/log",
        "PUT changes what is logged",
        put(set_log_filter).layer(DefaultBodyLimit::max(LOG_FILTER_BYTES)),
    );
    let pages = common_pages(state).merge(log.with_state(logs));
    pages
        .merge(debug.clone())
        .with_index(program, Listener::Socket)
}

/// The pages of the port, which change nothing.
pub(super) fn port_pages(program: &str, state: &PageState, debug: AdminPages) -> Router {
    let mut guarded = debug;
    guarded.router = guarded.router.layer(from_fn(refuse_foreign_names));
    let pages = common_pages(state)
        .merge(guarded)
        .with_index(program, Listener::Port);
    let advice = format!("log filters are changed by `{program} log FILTER` on this host\n");
    let refused = any(async move || {
        let no_method = [(header::ALLOW, "")];
        (StatusCode::METHOD_NOT_ALLOWED, no_method, advice.clone())
    });
    pages.merge(Router::new().route("/debug/log", refused))
}

/// `/metrics` and nothing else.
pub(super) fn metrics_page(state: &PageState) -> Router {
    let router = Router::new().route("/metrics", get(metrics));
    router.with_state(state.clone())
}

/// The pages that every program has.
fn common_pages(state: &PageState) -> AdminPages {
    AdminPages::new()
        .page("/livez", "ok, while the program runs", get(async || "ok\n"))
        .page("/readyz", "ok, or what is missing; and remarks", get(ready))
        .page("/metrics", "for Prometheus", get(metrics))
        .with_state(state.clone())
}

/// A page of JSON. It is made on a separate thread, so that a slow page does not delay other work.
pub async fn page<T: Serialize>(make: impl FnOnce() -> T + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(move || Json(make()).into_response()).await {
        Ok(page) => page,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn ready(State(state): State<PageState>) -> Response {
    let missing = state.readiness.missing();
    let remarks = lines(state.readiness.remarks());
    if missing.is_empty() {
        return format!("ok\n{remarks}").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, lines(missing) + &remarks).into_response()
}

fn lines(parts: Vec<(&str, String)>) -> String {
    let mut lines = String::new();
    for (name, text) in parts {
        lines += &format!("{name}: {text}\n");
    }
    lines
}

async fn metrics(State(state): State<PageState>) -> Response {
    match encode(state.registries.as_slice()) {
        Ok(text) => (
            [(
                "content-type",
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn encode(registries: &[Registry]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for registry in registries {
        encode_registry(&mut text, registry)?;
    }
    encode_eof(&mut text)?;
    Ok(text)
}

async fn set_log_filter(State(logs): State<Logs>, filter: String) -> Response {
    match logs.set_filter(filter.trim()) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "log filter changed");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
    }
}
