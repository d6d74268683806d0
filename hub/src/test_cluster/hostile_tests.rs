//! Clients that hold what they can, and answers that are not the API server's: neither changes what
//! others get.

use bytes::Bytes;
use futures_util::future::select_all;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::ops::RangeBounds;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};

use super::fake_api::Said;
use super::tests::{APP, PODS, exec_as, remembered, watch_from, with_listed_pods};
use super::{DEADLINE, TestCluster};
use crate::limits::OTHERS_LONG;
use crate::upstream::connector::Protocols;
use crate::upstream::{empty, full};

/// Until an answer that is not read has ended, with some reserve.
const UNREAD: Duration = Duration::from_secs(90);
const SERVICES: &str = "/api/v1/services";
const HTML: Said = Said::new(200, "text/html", "<html>Please log in</html>");

/// Until the copies of answers, which come after them, are in the memory.
async fn documents(cluster: &TestCluster, count: usize) {
    let all = async {
        while cluster.hub.memory.lock().cache.documents.len() < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, all).await.unwrap();
}

pub(super) fn say(cluster: &TestCluster, path: &'static str, said: Said) {
    cluster.api.shared.said.lock().insert(path, said);
}

pub(super) fn say_nothing(cluster: &TestCluster) {
    cluster.api.shared.said.lock().clear();
}

#[tokio::test]
async fn a_stranger_does_not_make_a_document_disappear_by_a_slash_at_its_end() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let live = cluster.kubelet().get("/version").await;
    documents(&cluster, 1).await;
    assert_eq!(cluster.stranger().get("/version/").await.0, 401);
    assert_eq!(cluster.pod(APP).get("/version/").await.0, 404);
    // A further document, whose copy comes later.
    cluster.kubelet().get("/apis").await;
    documents(&cluster, 2).await;
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get("/version").await, live);
}

#[tokio::test]
async fn a_page_of_a_load_balancer_replaces_no_document() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let live = cluster.kubelet().get("/version").await;
    documents(&cluster, 1).await;
    for page in [HTML, Said::new(404, "text/plain", "default backend - 404")] {
        say(&cluster, "/version", page);
        assert_eq!(cluster.kubelet().get("/version").await.0, page.status);
    }
    say_nothing(&cluster);
    cluster.kubelet().get("/apis").await;
    documents(&cluster, 2).await;
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get("/version").await, live);
}

#[tokio::test]
async fn a_date_of_a_client_says_nothing_about_a_document() {
    let cluster = TestCluster::start().await;
    cluster.link_is(true).await;
    let kubelet = cluster.kubelet();
    kubelet.get("/version").await;
    documents(&cluster, 1).await;
    let request = Request::get(format!("{}/version", cluster.address))
        .header("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT")
        .body(empty())
        .unwrap();
    let answer = timeout(DEADLINE, kubelet.http.request(request)).await;
    assert_eq!(answer.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn a_page_of_a_captive_portal_allows_nothing() {
    let cluster = with_listed_pods().await;
    let app = cluster.pod(APP);
    say(&cluster, PODS, HTML);
    for path in [PODS.to_owned(), watch_from(101)] {
        assert!(app.get(&path).await.1.contains("log in"), "{path}");
    }
    say_nothing(&cluster);
    assert_eq!(app.get("/api/v1/nodes").await.0, 404);
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
    for path in [PODS.to_owned(), watch_from(101)] {
        assert_eq!(app.get(&path).await.0, 503, "{path}");
    }
}

#[tokio::test]
async fn no_broken_list_is_ever_an_answer_of_memory() {
    const JSON: &str = "application/json";
    let cluster = with_listed_pods().await;
    let kubelet = cluster.kubelet();
    let live = kubelet.get_json(PODS).await;
    let gzip = Said {
        content_encoding: "gzip",
        body: b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\x56",
        ..Said::new(200, JSON, "")
    };
    for said in [
        Said::new(
            200,
            JSON,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{"resourceVersion":"500"},"status":"Success","code":200}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":""},"items":[]}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"five"},"items":[]}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"500"},"items":[{"metadata":{"name":"a""#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"500"}}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"500"}}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"APIResourceList","apiVersion":"v1","metadata":{"resourceVersion":"500"},"items":[]}"#,
        ),
        Said::new(
            200,
            JSON,
            r#"{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"500"},"items":[]}"#,
        ),
        Said::new(200, JSON, "null"),
        Said::new(200, JSON, ""),
        gzip,
    ] {
        say(&cluster, PODS, said);
        let request = Request::get(format!("{}{PODS}", cluster.address))
            .header("accept", JSON)
            .body(empty())
            .unwrap();
        // It may break off.
        if let Ok(answer) = timeout(DEADLINE, kubelet.http.request(request))
            .await
            .unwrap()
        {
            drop(
                timeout(DEADLINE, answer.into_body().collect())
                    .await
                    .unwrap(),
            );
        }
        say_nothing(&cluster);
    }
    // A further list, whose copy comes later.
    kubelet.get(SERVICES).await;
    remembered(&cluster, 2).await;
    cluster.cut().await;
    let (status, list) = kubelet.get(PODS).await;
    if status != 503 {
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        assert_eq!((status, &list["items"]), (200, &live["items"]));
    }
}

/// A connection of HTTP/2, on which answers have such a window.
async fn connection(
    cluster: &TestCluster,
    window: u32,
    tasks: &mut JoinSet<()>,
) -> http2::SendRequest<Empty<Bytes>> {
    let connector = cluster.connector(&cluster.address, None, Protocols::Http2OrHttp1);
    let stream = connector.connect().await.unwrap();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .handshake(stream)
        .await
        .unwrap();
    tasks.spawn(async move {
        connection.await.ok();
    });
    sender
}

fn request(cluster: &TestCluster, path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("{}{path}", cluster.address))
        .header("accept", "application/json")
        .header("authorization", format!("Bearer {APP}"))
        .body(Empty::new())
        .unwrap()
}

#[tokio::test]
async fn who_has_too_many_requests_leaves_no_refusals_behind_that_it_does_not_read() {
    let cluster = with_listed_pods().await;
    let mut tasks = JoinSet::new();
    cluster.stranger().with_token(APP).get(PODS).await;
    let mut watches = Vec::new();
    while watches.len() < OTHERS_LONG as usize {
        let mut sender = connection(&cluster, 1 << 16, &mut tasks).await;
        for _ in 0..100 {
            let answer = sender.send_request(request(&cluster, &watch_from(101)));
            let answer = timeout(DEADLINE, answer).await.unwrap().unwrap();
            assert_eq!(answer.status(), 200);
            watches.push((answer, sender.clone()));
        }
    }
    let mut sender = connection(&cluster, 0, &mut tasks).await;
    let refused = sender.send_request(request(&cluster, &watch_from(101)));
    let mut refused = timeout(DEADLINE, refused).await.unwrap().unwrap();
    assert_eq!(refused.status(), 429);
    let end = timeout(UNREAD, refused.body_mut().frame()).await;
    assert!(end.expect("it ends").expect("not whole").is_err());
}

/// Until what others than the node hold is within these bounds.
pub(super) async fn held(cluster: &TestCluster, bounds: impl RangeBounds<usize>) {
    let held = async {
        while !bounds.contains(&cluster.hub.budget.bytes()) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let held = timeout(DEADLINE, held).await;
    assert!(held.is_ok(), "{} are held", cluster.hub.budget.bytes());
}

#[tokio::test]
async fn a_large_head_counts_until_the_answer_ends_and_so_do_many_small_headers() {
    let cluster = with_listed_pods().await;
    let mut tasks = JoinSet::new();
    let mut sender = connection(&cluster, 1 << 16, &mut tasks).await;
    let selector = "a,".repeat(5000) + "a";
    let large = format!("{}&labelSelector={selector}", watch_from(101));
    let large = request(&cluster, &large);
    let mut many = request(&cluster, &watch_from(101));
    for number in 0..200 {
        let name = http::HeaderName::try_from(format!("x{number}")).unwrap();
        let value = http::HeaderValue::from_static("1");
        many.headers_mut().insert(name, value);
    }
    for request in [large, many] {
        let watch = timeout(DEADLINE, sender.send_request(request)).await;
        let watch = watch.unwrap().unwrap();
        assert_eq!(watch.status(), 200);
        held(&cluster, 10_000..).await;
        drop(watch);
        held(&cluster, ..1).await;
    }
}

#[tokio::test]
async fn a_body_counts_as_it_comes_and_if_it_pauses_with_what_its_frames_may_occupy() {
    const LENGTH: usize = 150 << 10;
    const PAUSED: usize = 4 << 20;
    let cluster = with_listed_pods().await;
    let app = cluster.stranger().with_token(APP);
    app.get(PODS).await;
    cluster.api.shared.hangs.store(true, Ordering::Relaxed);
    let begun = stream::iter([Ok(Frame::data(Bytes::from_static(b"{")))]);
    let paused = StreamBody::new(begun.chain(stream::pending()));
    for (body, counted) in [
        (full(vec![b'x'; LENGTH]), LENGTH..PAUSED),
        (paused.boxed_unsync(), PAUSED..2 * PAUSED),
    ] {
        tokio::select! {
            answer = app.send("POST", PODS, body) => panic!("{answer:?}"),
            () = held(&cluster, counted) => {}
        }
        held(&cluster, ..1).await;
    }
}

#[tokio::test]
async fn upgrades_that_the_api_server_does_not_answer_are_few() {
    let cluster = with_listed_pods().await;
    cluster.stranger().with_token(APP).get(PODS).await;
    cluster.api.shared.hangs.store(true, Ordering::Relaxed);
    let upgrades = (0..9).map(|_| Box::pin(exec_as(&cluster, None, APP)));
    let ((answer, _tasks), _, _waiting) = select_all(upgrades).await;
    assert_eq!(answer.status(), 429);
}

#[tokio::test]
async fn requests_of_an_odd_form_are_answered_and_kubelet_too() {
    let cluster = with_listed_pods().await;
    for line in [
        "CONNECT api:443 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "TRACE /api/v1/pods HTTP/1.1",
        "GET http://elsewhere/api/v1/nodes HTTP/1.1",
        "GET //api//v1///pods HTTP/1.1",
        "GET /api/v1/namespaces/default/pods/%2e%2e/%2e%2e/secrets/key HTTP/1.1",
        "GET /%61pi/v1/namespaces/default/pods HTTP/1.1",
        "GET /api/v1/namespaces/default/pods?%zz&watch&watch=true&=&;& HTTP/1.1",
        "GET /api/v1/namespaces/default/pods?resourceVersion=-1&limit=99999999999999999999 HTTP/1.1",
        "PATCH /api/v1/nodes/edge-1/status?dryRun=All HTTP/1.1\r\nContent-Type: application/apply-patch+cbor",
        "GET /apis HTTP/1.1\r\nAccept: application/json;q=nan,*/*;q=-1;q",
        "GET /api/v1/pods HTTP/1.1\r\nAuthorization: Basic x",
        "GET /api/v1/pods HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade, close",
    ] {
        let connector = cluster.connector(&cluster.address, None, Protocols::Http1);
        let mut stream = hyper_util::rt::TokioIo::new(connector.connect().await.unwrap());
        let request = format!("{line}\r\nHost: hub\r\nAuthorization: Bearer {APP}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut begun = [0; 12];
        let answered = timeout(DEADLINE, stream.read_exact(&mut begun)).await;
        answered.expect(line).expect(line);
        assert!(begun.starts_with(b"HTTP/1.1 "), "{line}: {begun:?}");
        assert_eq!(cluster.kubelet().get(PODS).await.0, 200, "{line}");
    }
    remembered(&cluster, 1).await;
    cluster.cut().await;
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
}
