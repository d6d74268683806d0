//! The admin server of each binary: liveness, readiness, metrics, the log filter, and the binary's own `/debug` pages.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::{Logs, Readiness};

/// A log filter is a line; a longer body is a mistake.
const LOG_FILTER_BYTES: usize = 4096;

/// The admin listener, bound but not yet serving.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
}

#[derive(Clone)]
struct Parts {
    readiness: Readiness,
    registry: Arc<Registry>,
    logs: Logs,
}

impl Admin {
    /// Takes the port. `debug` holds the binary's own routes, such as `/debug/tunnels`.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        readiness: Readiness,
        registry: Registry,
        logs: Logs,
        debug: Router,
    ) -> Result<Self> {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("bind the admin listener to {address}"))?;
        let address = listener.local_addr().context("read the admin listener's address")?;
        let router = Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .route("/debug/log", put(set_log_filter).layer(DefaultBodyLimit::max(LOG_FILTER_BYTES)))
            .with_state(Parts { readiness, registry: Arc::new(registry), logs })
            .merge(debug);
        Ok(Self { listener, address, router })
    }

    /// Where it listens; tests bind port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves for ever: a draining process is still alive, and its metrics tell how the drain goes.
    ///
    /// # Errors
    /// The listener fails.
    pub async fn serve(self) -> Result<()> {
        axum::serve(self.listener, self.router).await.context("serve admin requests")
    }
}

async fn ready(State(parts): State<Parts>) -> Response {
    let missing = parts.readiness.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    let lines: String = missing.iter().map(|(name, reason)| format!("{name}: {reason}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn metrics(State(parts): State<Parts>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &parts.registry) {
        Ok(()) => {
            ([("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn set_log_filter(State(parts): State<Parts>, filter: String) -> Response {
    match parts.logs.set_filter(filter.trim()) {
        Ok(()) => {
            tracing::info!(filter = filter.trim(), "log filter changed");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
    }
}
