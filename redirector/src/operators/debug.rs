//! `/debug/destinations` and `/debug/hooks`: what the kernel has right now, as JSON.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use culvert_api::installed;
use culvert_daemon::AdminPages;
use serde::Serialize;
use tokio::sync::watch;

use crate::directory::{Directory, Feed};
use crate::mechanisms::bpf::{Hook, Pins, Tables};

#[derive(Clone)]
struct Sources {
    pins: Pins,
    feed: watch::Receiver<Feed>,
}

/// The redirector's own pages for the admin server.
pub(crate) fn routes(pins: Pins, feed: watch::Receiver<Feed>) -> AdminPages {
    AdminPages::new()
        .page(
            "/debug/destinations",
            "what the connect hooks steer",
            get(destinations),
        )
        .page(
            "/debug/hooks",
            "the connect hooks and their counters",
            get(hooks),
        )
        .with_state(Sources { pins, feed })
}

#[derive(Serialize)]
struct DestinationView {
    destination: String,
    state: String,
    nodes: Vec<String>,
}

#[derive(Serialize)]
struct HooksView {
    root: String,
    hooks: Vec<installed::Hook>,
    connections: serde_json::Map<String, serde_json::Value>,
}

async fn destinations(State(sources): State<Sources>) -> Response {
    let directory = sources.feed.borrow().directory.clone();
    let in_kernel = match Tables::open(&sources.pins).and_then(|tables| tables.destinations()) {
        Ok(in_kernel) => in_kernel,
        Err(error) => return failed(error.into()),
    };
    let owners = directory
        .as_deref()
        .map(Directory::owners)
        .unwrap_or_default();
    let views: Vec<_> = in_kernel
        .into_iter()
        .map(|(destination, liveness)| DestinationView {
            destination: destination.to_string(),
            state: liveness.to_string(),
            nodes: owners
                .get(&destination.ip())
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect(),
        })
        .collect();
    Json(views).into_response()
}

async fn hooks(State(sources): State<Sources>) -> Response {
    let hooks = match Hook::read_all(&sources.pins) {
        Ok(hooks) => hooks,
        Err(error) => return failed(error.into()),
    };
    let counts = Tables::open(&sources.pins)
        .and_then(|tables| tables.counts())
        .unwrap_or_default();
    let connections = counts
        .into_iter()
        .map(|(counter, count)| (counter.name().to_owned(), count.into()))
        .collect();
    Json(HooksView {
        root: sources.pins.root().display().to_string(),
        hooks: hooks.iter().map(Hook::report).collect(),
        connections,
    })
    .into_response()
}

/// Answers with the error as text.
pub(crate) fn failed(error: anyhow::Error) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}\n")).into_response()
}
