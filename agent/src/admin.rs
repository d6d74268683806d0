//! The agent's own pages of the admin server: `/debug/tunnels` and `/debug/streams`.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use crate::tunnels::{StreamView, TunnelView, Tunnels};

/// The routes, as JSON.
pub(crate) fn routes(tunnels: Tunnels) -> Router {
    Router::new()
        .route("/debug/tunnels", get(debug_tunnels))
        .route("/debug/streams", get(debug_streams))
        .with_state(tunnels)
}

async fn debug_tunnels(State(tunnels): State<Tunnels>) -> Json<Vec<TunnelView>> {
    Json(tunnels.tunnels())
}

async fn debug_streams(State(tunnels): State<Tunnels>) -> Json<Vec<StreamView>> {
    Json(tunnels.streams())
}
