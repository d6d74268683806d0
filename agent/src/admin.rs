//! The agent's own pages of the admin server: `/debug/tunnels` and `/debug/streams`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use culvert_daemon::page;

use crate::tunnels::states::Tunnels;

/// Serves both pages as JSON.
pub(crate) fn routes(tunnels: Tunnels) -> Router {
    Router::new()
        .route("/debug/tunnels", get(debug_tunnels))
        .route("/debug/streams", get(debug_streams))
        .with_state(tunnels)
}

async fn debug_tunnels(State(tunnels): State<Tunnels>) -> Response {
    page(move || tunnels.tunnels()).await
}

async fn debug_streams(State(tunnels): State<Tunnels>) -> Response {
    page(move || tunnels.streams()).await
}
