//! Clients that speak HTTP/2 only as far as it costs the hub something: frames without an end that carry
//! nothing, beginnings without a rest, and bodies of strangers. None of it ends kubelet's requests.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Duration, sleep, timeout};

use super::hostile_tests::held;
use super::tests::{APP, PODS, exec_as, with_listed_pods};
use super::{DEADLINE, TestCluster};
use crate::upstream::connector::{CloudStream, Protocols};
use crate::upstream::{Body, BodyError};

const EVENTS: &str = "/api/v1/namespaces/default/events";
/// A token that nobody has.
const REFUSED: &str = "refused";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Many more than a client has a reason for.
const FLOOD: u32 = 20_000;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const UNKNOWN: u8 = 0x42;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ONE: [u8; 4] = [0, 0, 0, 1];
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// In the static table of HPACK.
const GET: u8 = 0x82;
const POST: u8 = 0x83;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A request, in HPACK without a table of its own.
fn headers(flags: u8, stream: u32, method: u8, token: Option<&str>) -> Vec<u8> {
    // https, `:path` and `:authority`.
    let mut block = vec![method, 0x87];
    for (name, value) in [(0x04, PODS), (0x01, "hub")] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    if let Some(token) = token {
        let value = format!("Bearer {token}");
        block.extend([0x0f, 0x08, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    frame(HEADERS, flags, stream, &block)
}

/// A connection on which nothing was said but TLS.
async fn secured(cluster: &TestCluster, protocols: Protocols) -> TokioIo<CloudStream> {
    let connector = cluster.connector(&cluster.address, None, protocols);
    TokioIo::new(connector.connect().await.unwrap())
}

/// Sends a beginning, and then frames without an end, until the hub ends the connection.
async fn flood(cluster: &TestCluster, begin: &[u8], next: impl Fn(u32) -> Vec<u8>) {
    let stream = secured(cluster, Protocols::Http2OrHttp1).await;
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), begin].concat();
        for number in 0..FLOOD {
            sent.extend(next(number));
            if sent.len() > 4 << 10 {
                write.write_all(&sent).await?;
                sent.clear();
            }
        }
        std::future::pending::<io::Result<()>>().await
    };
    let mut answers = tokio::io::sink();
    let ended = async {
        // With or without notice.
        tokio::select! {
            _ = sending => {}
            _ = tokio::io::copy(&mut read, &mut answers) => {}
        }
    };
    let ended = timeout(DEADLINE, ended).await;
    assert!(ended.is_ok(), "{begin:?} {:?}", next(0));
}

/// Until so many requests are under way.
async fn under_way(cluster: &TestCluster, requests: u32) {
    let reached = async {
        loop {
            let counts = cluster.hub.limits.counts();
            if counts.values().flatten().sum::<u32>() == requests {
                return;
            }
            yield_now().await;
        }
    };
    timeout(DEADLINE, reached).await.unwrap();
}

async fn all_floods(cluster: &TestCluster, token: Option<&str>) {
    let get = headers(END_STREAM | END_HEADERS, 1, GET, token);
    let begun = headers(END_STREAM, 1, GET, token);
    let post = headers(END_HEADERS, 1, POST, token);
    for (begin, repeated) in [
        (&get, frame(PING, 0, 0, &[0; 8])),
        (&get, frame(PING, ACK, 0, &[0; 8])),
        (&get, frame(SETTINGS, 0, 0, &[])),
        (&get, frame(WINDOW_UPDATE, 0, 0, &ONE)),
        (&get, frame(WINDOW_UPDATE, 0, 1, &ONE)),
        (&get, frame(PRIORITY, 0, 1, &[0; 5])),
        (&get, frame(GOAWAY, 0, 0, &[0; 8])),
        (&get, frame(UNKNOWN, 0, 0, &[])),
        (&get, frame(RST_STREAM, 0, 1, &CANCEL)),
        (&post, frame(DATA, 0, 1, &[])),
        (&begun, frame(CONTINUATION, 0, 1, &[])),
    ] {
        flood(cluster, begin, |_| repeated.clone()).await;
    }
    flood(cluster, &[], |number| {
        let stream = 2 * number + 1;
        let request = headers(END_STREAM | END_HEADERS, stream, GET, token);
        [request, frame(RST_STREAM, 0, stream, &CANCEL)].concat()
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_frames_ends_its_connection_and_kubelet_is_answered_meanwhile() {
    let cluster = with_listed_pods().await;
    cluster.stranger().with_token(APP).get(PODS).await;
    let kubelet = cluster.kubelet();
    let asks = async {
        loop {
            assert_eq!(kubelet.get(PODS).await.0, 200);
            sleep(Duration::from_millis(1)).await;
        }
    };
    let floods = async {
        all_floods(&cluster, None).await;
        all_floods(&cluster, Some(APP)).await;
    };
    tokio::select! {
        () = asks => {}
        () = floods => {}
    }
    under_way(&cluster, 0).await;
}

#[tokio::test]
async fn requests_that_are_given_up_before_their_answer_end_their_connection() {
    let cluster = with_listed_pods().await;
    cluster.stranger().with_token(APP).get(PODS).await;
    cluster.api.shared.hangs.store(true, Ordering::Relaxed);
    let mut stream = secured(&cluster, Protocols::Http2OrHttp1).await;
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    stream.write_all(&begin).await.unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        for number in 0..FLOOD {
            let id = 2 * number + 1;
            let request = headers(END_STREAM | END_HEADERS, id, GET, Some(APP));
            write.write_all(&request).await?;
            under_way(&cluster, 1).await;
            let reset = frame(RST_STREAM, 0, id, &CANCEL);
            write.write_all(&reset).await?;
            under_way(&cluster, 0).await;
        }
        io::Result::Ok(())
    };
    let mut answers = tokio::io::sink();
    tokio::select! {
        sent = sending => assert!(sent.is_err(), "all were taken"),
        _ = tokio::io::copy(&mut read, &mut answers) => {}
    }
    under_way(&cluster, 0).await;
}

/// What was said, and whether the connection ends.
async fn has_ended(said: Vec<u8>, mut stream: impl AsyncRead + Unpin) -> (Vec<u8>, bool) {
    let mut answers = Vec::new();
    let ended = timeout(Duration::from_mins(5), stream.read_to_end(&mut answers));
    let has_ended = ended.await.is_ok();
    (said, has_ended)
}

#[tokio::test]
async fn connections_that_begin_and_say_no_more_end() {
    let cluster = with_listed_pods().await;
    let request = headers(END_STREAM | END_HEADERS, 1, GET, None);
    let settings = frame(SETTINGS, 0, 0, &[]);
    let mut begun = JoinSet::new();
    for (protocols, said) in [
        (Protocols::Http1, Vec::new()),
        (Protocols::Http1, b"G".to_vec()),
        (Protocols::Http1, b"GET /api HTTP/1.1\r\nHos".to_vec()),
        (Protocols::Http2OrHttp1, Vec::new()),
        (Protocols::Http2OrHttp1, PREFACE[..12].to_vec()),
        (Protocols::Http2OrHttp1, PREFACE.to_vec()),
        (
            Protocols::Http2OrHttp1,
            [PREFACE, &settings, &request[..20]].concat(),
        ),
    ] {
        let mut stream = secured(&cluster, protocols).await;
        stream.write_all(&said).await.unwrap();
        begun.spawn(has_ended(said, stream));
    }
    let address = cluster.address.strip_prefix("https://").unwrap();
    let mut unsecured = TcpStream::connect(address).await.unwrap();
    unsecured.write_all(&[0x16]).await.unwrap();
    begun.spawn(has_ended(vec![0x16], unsecured));
    assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
    // From here on nothing has to be waited for.
    tokio::time::pause();
    while let Some(ended) = begun.join_next().await {
        let (said, has_ended) = ended.unwrap();
        assert!(has_ended, "{:?}", String::from_utf8_lossy(&said));
    }
}

#[tokio::test]
async fn a_host_process_that_connects_without_a_pause_does_not_keep_kubelet_out() {
    const OPEN: usize = 1000;
    let cluster = with_listed_pods().await;
    culvert_daemon::raise_open_file_limit();
    let address = cluster.address.strip_prefix("https://").unwrap().to_owned();
    let over = Arc::new(AtomicBool::new(false));
    let opened = Arc::new(AtomicUsize::new(0));
    let is_over = over.clone();
    let count = opened.clone();
    let attacker = std::thread::spawn(move || {
        let mut open = VecDeque::new();
        while !is_over.load(Ordering::Relaxed) {
            let Ok(mut stream) = std::net::TcpStream::connect(&address) else {
                continue;
            };
            // The hub may have ended it already.
            stream.write_all(&[0x16]).ok();
            open.push_back(stream);
            if open.len() > OPEN {
                open.pop_front();
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    while opened.load(Ordering::Relaxed) < OPEN {
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..50 {
        // Each has a connection of its own.
        assert_eq!(cluster.kubelet().get(PODS).await.0, 200);
    }
    over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
}

/// A body that its client sends as long as it may, and how much of it was sent.
fn endless() -> (Body, Arc<AtomicUsize>) {
    const PART: &[u8] = &[b'x'; 1 << 10];
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let parts = stream::repeat_with(move || {
        count.fetch_add(PART.len(), Ordering::Relaxed);
        Ok::<_, BodyError>(Frame::data(Bytes::from_static(PART)))
    });
    (StreamBody::new(parts).boxed_unsync(), sent)
}

#[tokio::test]
async fn the_body_of_a_stranger_is_not_read_and_that_of_a_refused_token_goes_nowhere() {
    const LITTLE: usize = 1 << 20;
    let cluster = with_listed_pods().await;
    cluster.api.shared.owners.lock().insert(REFUSED, "");
    let refused = cluster.stranger().with_token(REFUSED);
    let (body, _) = endless();
    assert_eq!(refused.send("POST", PODS, body).await.status(), 401);
    // It has been reviewed.
    for client in [cluster.stranger(), refused] {
        let (body, sent) = endless();
        assert_eq!(client.send("POST", PODS, body).await.status(), 401);
        assert!(sent.load(Ordering::Relaxed) < LITTLE);
    }
    let asked = cluster.api.shared.asked.lock().clone();
    let with_refused = asked
        .iter()
        .find(|(_, _, token)| token.as_deref() == Some(REFUSED));
    assert_eq!(with_refused, None);
}

#[tokio::test]
async fn a_body_that_pauses_arrives_whole() {
    let cluster = with_listed_pods().await;
    let app = cluster.stranger().with_token(APP);
    app.get(PODS).await;
    let (go_on, gone_on) = oneshot::channel::<()>();
    let begun = stream::iter([Ok::<_, BodyError>(Frame::data(Bytes::from_static(
        b"{\"a\":",
    )))]);
    let rest = stream::once(async move {
        gone_on.await.unwrap();
        Ok(Frame::data(Bytes::from_static(b"1}")))
    });
    let body = StreamBody::new(begun.chain(rest)).boxed_unsync();
    let paused = async {
        held(&cluster, 4 << 20..).await;
        go_on.send(()).unwrap();
    };
    let (answer, ()) = tokio::join!(app.send("POST", EVENTS, body), paused);
    assert_eq!(answer.status(), 201);
    let mut events = cluster.api.shared.events.subscribe();
    let arrived = timeout(DEADLINE, events.wait_for(|events| !events.is_empty()));
    assert_eq!(arrived.await.unwrap().unwrap()[0]["a"], 1);
}

#[tokio::test]
async fn upgrades_that_are_not_finished_end_and_leave_their_places() {
    const STARTING: u32 = 8;
    let cluster = with_listed_pods().await;
    cluster.stranger().with_token(APP).get(PODS).await;
    cluster.api.shared.hangs.store(true, Ordering::Relaxed);
    // The client gives up.
    tokio::select! {
        (answer, _) = exec_as(&cluster, None, APP) => panic!("{answer:?}"),
        () = under_way(&cluster, 1) => {}
    }
    under_way(&cluster, 0).await;
    // The API server never answers.
    let mut waiting = Box::pin(join_all(
        (0..STARTING).map(|_| exec_as(&cluster, None, APP)),
    ));
    tokio::select! {
        answers = &mut waiting => panic!("{answers:?}"),
        () = under_way(&cluster, STARTING) => {}
    }
    tokio::time::pause();
    for (answer, _tasks) in waiting.await {
        assert_eq!(answer.status(), 503);
    }
    under_way(&cluster, 0).await;
}
