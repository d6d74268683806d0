//! The agent's own pages of the admin server: `/debug/{tunnels,streams,tasks}`.

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use culvert_daemon::{AdminPages, RunningTasks, Runtimes, TaskCounts, page, tasks_page};

use crate::tunnels::states::Tunnels;

/// Serves the pages as JSON.
pub(crate) fn routes(tunnels: Tunnels, runtimes: Runtimes, running: RunningTasks) -> AdminPages {
    let counted = tunnels.clone();
    let tasks = tasks_page(runtimes, running, move || {
        let [tunnels, streams] = counted.totals();
        TaskCounts::from([("tunnels", tunnels), ("streams", streams)])
    });
    AdminPages::new()
        .page("/debug/tunnels", "tunnels to proxies", get(debug_tunnels))
        .page(
            "/debug/streams",
            "clients' connections to backends",
            get(debug_streams),
        )
        .with_state(tunnels)
        .merge(tasks)
}

async fn debug_tunnels(State(tunnels): State<Tunnels>) -> Response {
    page(move || tunnels.tunnels()).await
}

async fn debug_streams(State(tunnels): State<Tunnels>) -> Response {
    page(move || tunnels.streams()).await
}
