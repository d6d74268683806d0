//! The agent's own pages of the admin server: `/debug/{tunnels,streams,tasks}`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use culvert_daemon::{RunningTasks, Runtimes, TaskCounts, page, tasks_page};

use crate::tunnels::states::Tunnels;

/// Serves the pages as JSON.
pub(crate) fn routes(tunnels: Tunnels, runtimes: Runtimes, running: RunningTasks) -> Router {
    let counted = tunnels.clone();
    let tasks = tasks_page(runtimes, running, move || {
        let [tunnels, streams] = counted.totals();
        TaskCounts::from([("tunnels", tunnels), ("streams", streams)])
    });
    Router::new()
        .route("/debug/tunnels", get(debug_tunnels))
        .route("/debug/streams", get(debug_streams))
        .with_state(tunnels)
        .merge(tasks)
}

async fn debug_tunnels(State(tunnels): State<Tunnels>) -> Response {
    page(move || tunnels.tunnels()).await
}

async fn debug_streams(State(tunnels): State<Tunnels>) -> Response {
    page(move || tunnels.streams()).await
}
