use axum::body::Body;
use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::live::{Frontend, StreamRecord};
use culvert_tunnel::RelayError;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tempfile::TempDir;
use tower::ServiceExt;

use super::*;
use crate::control::tests::control;

/// What a page may take.
const MAX_BYTES: usize = 2_000_000;

fn dashboard(nodes: usize) -> (TempDir, Dashboard) {
    let mut file = String::new();
    for index in 1..=nodes {
        let address = format!(
            "10.{}.{}.{}",
            100 + index / 62_500,
            index / 250 % 250,
            index % 250 + 1
        );
        file += &format!("[nodes.edge-{index}]\naddresses = [\"{address}\"]\n");
    }
    let (folder, control) = control(Some(&file));
    let dashboard = Dashboard::new(control, Readiness::default(), Metrics::default());
    (folder, dashboard)
}

async fn page(shown: &Shown, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = shown.pages().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// A connection with edge-1.
fn start_record(control: &Control, number: u64, client: &str) -> StreamRecord {
    let node: NodeName = "edge-1".parse().unwrap();
    let destination = Destination::Node(node.clone(), 9100);
    let streams = control.streams.streams();
    let record = streams.start_record(number, Frontend::Ebpf, client.into(), destination);
    record.set_node(&node);
    record
}

#[tokio::test]
async fn ten_thousand_nodes_are_less_than_two_megabytes() {
    let (_folder, dashboard) = dashboard(10_000);
    let (status, page) = page(&dashboard.port, "/").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.len() < MAX_BYTES, "{} bytes", page.len());
    assert!(page.contains("page 1 of 100"), "{page:.2000}");
}

#[tokio::test]
async fn the_port_leaves_out_what_its_other_pages_do_not_have() {
    let (_folder, dashboard) = dashboard(2);
    let control = &dashboard.port.content.control;
    let _tunnel = control.registry.register_for_tests("edge-1").await;
    let _running = start_record(control, 1, "10.0.0.1:4001");
    let mut failed = start_record(control, 2, "10.0.0.2:4002");
    failed.record_end(&Err(RelayError::Moved));
    drop(failed);
    for path in ["/", "/node/edge-1"] {
        let (_, by_port) = page(&dashboard.port, path).await;
        let (_, by_socket) = page(&dashboard.socket, path).await;
        for shown in ["10.0.0.1:4001", "edge-1"] {
            assert!(by_port.contains(shown), "{path}: {by_port}");
            assert!(by_socket.contains(shown), "{path}: {by_socket}");
        }
        for hidden in ["10.0.0.2:4002", "address_moved"] {
            assert!(!by_port.contains(hidden), "{path}: {by_port}");
            assert!(by_socket.contains(hidden), "{path}: {by_socket}");
        }
    }
    let (_, by_port) = page(&dashboard.port, "/node/edge-1").await;
    let (_, by_socket) = page(&dashboard.socket, "/node/edge-1").await;
    assert!(!by_port.contains("class=\"hops\""), "{by_port}");
    assert!(by_socket.contains("class=\"hops\""), "{by_socket}");
    let (status, _) = page(&dashboard.socket, "/node/edge-9").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[test]
fn whoever_reaches_the_port_learns_no_certificate_and_not_where_else_a_node_is() {
    let (_folder, dashboard) = dashboard(1);
    let mut answer = WatchedAnswer {
        host: dashboard.port.content.host(),
        failures: Vec::new(),
        traffic: Traffic::default(),
    };
    assert!(answer.host.proxies[0].certificate_ends > 0);
    answer.host.nodes[0].elsewhere = vec!["cloud-2".to_owned(), "cloud-3".to_owned()];
    leave_out(&mut answer);
    assert_eq!(
        answer.host.certificates,
        Vec::<proto::CertificateStatus>::new()
    );
    assert_eq!(answer.host.proxies[0].certificate_ends, 0);
    assert_eq!(answer.host.nodes[0].elsewhere, [ANOTHER_PROXY]);
}

#[tokio::test]
async fn what_nobody_looks_at_is_forgotten() {
    let (_folder, dashboard) = dashboard(2);
    let shown = &dashboard.port;
    page(shown, "/").await;
    tokio::time::pause();
    tokio::time::advance(FRESH_FOR).await;
    shown.forget_unwatched().await;
    assert!(
        shown.board.lock().site.is_some(),
        "somebody has just looked"
    );
    tokio::time::advance(FORGET_AFTER).await;
    shown.forget_unwatched().await;
    assert!(shown.board.lock().site.is_none());
}
