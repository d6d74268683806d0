//! A client and servers that say each byte themselves.

use culvert_proxy_streams::direct;
use culvert_tunnel::Transferred;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use culvert_daemon::Worker;

use super::*;
use crate::http::opened::Pair;

/// Nothing here takes as long.
const DEADLINE: Duration = Duration::from_secs(20);

/// Passes requests on to servers named in `Host`.
struct ByHost {
    /// The server's end of each connection that is opened.
    dialled_tx: mpsc::UnboundedSender<(String, UnixStream)>,
}

impl Answers for ByHost {
    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Body>, ServerClosed> {
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        let destination = Destination::Name(host.clone(), 80);
        let open = async {
            let (near, far) = UnixStream::pair().unwrap();
            let (pair, other) = Pair::new().unwrap();
            let relayed = async move {
                let counters = Transferred::default();
                direct::relay(other, near.into(), Bytes::new(), &counters).await
            };
            let task = Worker::current().run(relayed);
            self.dialled_tx.send((host, far)).unwrap();
            Ok(pair.relayed(task))
        };
        let passed = connection.pass_on(request, &destination, open).await;
        passed.or_else(NotPassed::response)
    }
}

/// A client's connection, and what comes of it.
struct World {
    client: UnixStream,
    dialled: mpsc::UnboundedReceiver<(String, UnixStream)>,
    served: JoinHandle<Result<()>>,
}

impl World {
    fn new() -> Self {
        let (client, near) = UnixStream::pair().unwrap();
        let (dialled_tx, dialled) = mpsc::unbounded_channel();
        #[allow(clippy::disallowed_methods, reason = "the test's runtime ends it")]
        let served = tokio::spawn(async move {
            let mut server = builder();
            server.half_close(true);
            let answers = ByHost { dialled_tx };
            serve(&server, near, &answers, &Drain::default()).await
        });
        Self {
            client,
            dialled,
            served,
        }
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// The next connection to a server.
    async fn dialled(&mut self, host: &str) -> UnixStream {
        let (to, server) = timeout(DEADLINE, self.dialled.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(to, host);
        server
    }

    /// Sends a request to a new connection of a server, which answers with a text.
    async fn exchange(&mut self, host: &str, answer: &str) -> UnixStream {
        self.send(&get(host)).await;
        let mut server = self.dialled(host).await;
        head(&mut server).await;
        server.write_all(ok(answer).as_bytes()).await.unwrap();
        let said = until(&mut self.client, answer).await;
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        server
    }
}

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn ok(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
}

/// What comes until it ends with `end`.
async fn until(from: &mut UnixStream, end: &str) -> String {
    let mut all = Vec::new();
    let read = async {
        while !all.ends_with(end.as_bytes()) {
            assert!(from.read_buf(&mut all).await.unwrap() > 0, "an end");
        }
    };
    let read = timeout(DEADLINE, read).await;
    let said = String::from_utf8_lossy(&all).into_owned();
    assert!(read.is_ok(), "no {end:?} in {said:?}");
    said
}

async fn head(server: &mut UnixStream) -> String {
    until(server, "\r\n\r\n").await
}

/// What comes until the end.
async fn rest(from: &mut UnixStream) -> String {
    let mut all = String::new();
    let read = timeout(DEADLINE, from.read_to_string(&mut all)).await;
    read.expect("it ends").unwrap();
    all
}

#[tokio::test]
async fn each_of_several_requests_at_once_goes_to_the_server_that_it_names() {
    let mut world = World::new();
    world
        .send(&[get("one"), get("two"), get("one")].concat())
        .await;
    for (host, answer) in [("one", "first"), ("two", "second"), ("one", "third")] {
        let mut server = world.dialled(host).await;
        assert!(
            head(&mut server)
                .await
                .contains(&format!("Host: {host}\r\n"))
        );
        server.write_all(ok(answer).as_bytes()).await.unwrap();
        until(&mut world.client, answer).await;
    }
}

#[tokio::test]
async fn requests_for_one_server_share_a_connection_to_it() {
    let mut world = World::new();
    let mut server = world.exchange("one", "first").await;
    world.send(&get("one")).await;
    head(&mut server).await;
    server.write_all(ok("second").as_bytes()).await.unwrap();
    until(&mut world.client, "second").await;
    drop(world.client);
    assert_eq!(rest(&mut server).await, "", "it ends in order");
    timeout(DEADLINE, world.served)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_server_that_ends_its_idle_connection_is_dialled_again() {
    let mut world = World::new();
    for _ in 0..2 {
        let server = world.exchange("one", "answer").await;
        drop(server);
        // Its end has to arrive first.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_server_that_ends_its_connection_upon_a_request_ends_the_clients_too() {
    let mut world = World::new();
    let mut server = world.exchange("one", "answer").await;
    world.send(&get("one")).await;
    head(&mut server).await;
    drop(server);
    assert_eq!(
        rest(&mut world.client).await,
        "",
        "the client may try again"
    );
    assert!(world.served.await.unwrap().is_err());
}

#[tokio::test]
async fn a_server_that_ends_its_first_connection_without_an_answer_is_a_502() {
    let mut world = World::new();
    world.send(&get("one")).await;
    let mut server = world.dialled("one").await;
    head(&mut server).await;
    drop(server);
    let said = until(&mut world.client, "\n").await;
    assert!(said.starts_with("HTTP/1.1 502 "), "{said}");
}

#[tokio::test]
async fn an_upload_in_chunks_passes_as_it_comes_also_with_get() {
    for method in ["POST", "GET"] {
        let mut world = World::new();
        world
            .send(&format!(
                "{method} / HTTP/1.1\r\nHost: one\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
            ))
            .await;
        let mut server = world.dialled("one").await;
        until(&mut server, "3\r\nabc\r\n").await;
        world.send("2\r\nde\r\n0\r\n\r\n").await;
        until(&mut server, "2\r\nde\r\n0\r\n\r\n").await;
        server.write_all(ok("taken").as_bytes()).await.unwrap();
        until(&mut world.client, "taken").await;
    }
}

/// RFC 9112, 6.3: the chunks count, and a length beside them is not passed on.
#[tokio::test]
async fn a_length_beside_chunks_cuts_neither_an_upload_nor_an_answer() {
    for length in [3, 30] {
        let headers = format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let body = "9\r\n012345678\r\n0\r\n\r\n";
        let mut world = World::new();
        world
            .send(&format!("PUT / HTTP/1.1\r\nHost: one\r\n{headers}{body}"))
            .await;
        let mut server = world.dialled("one").await;
        let asked = until(&mut server, body).await.to_ascii_lowercase();
        assert!(!asked.contains("content-length"), "{asked}");
        server
            .write_all(format!("HTTP/1.1 200 OK\r\n{headers}{body}").as_bytes())
            .await
            .unwrap();
        let said = until(&mut world.client, body).await.to_ascii_lowercase();
        assert!(!said.contains("content-length"), "{said}");
    }
}

/// What its client cannot be told would be other bytes to it.
#[tokio::test]
async fn a_body_that_is_compressed_between_neighbours_is_refused() {
    for coding in ["gzip, chunked", "chunked, chunked"] {
        let mut world = World::new();
        let coded = format!("Transfer-Encoding: {coding}\r\n\r\n1\r\na\r\n0\r\n\r\n");
        world
            .send(&format!("PUT / HTTP/1.1\r\nHost: one\r\n{coded}"))
            .await;
        let said = until(&mut world.client, "\n").await;
        assert!(said.starts_with("HTTP/1.1 501 "), "{coding}: {said}");

        let mut world = World::new();
        world.send(&get("one")).await;
        let mut server = world.dialled("one").await;
        head(&mut server).await;
        server
            .write_all(format!("HTTP/1.1 200 OK\r\n{coded}").as_bytes())
            .await
            .unwrap();
        let said = until(&mut world.client, "\n").await;
        assert!(said.starts_with("HTTP/1.1 502 "), "{coding}: {said}");
    }
}

#[tokio::test]
async fn a_body_is_asked_for_when_its_server_continues() {
    let mut world = World::new();
    world
        .send("PUT / HTTP/1.1\r\nHost: one\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        .await;
    let mut server = world.dialled("one").await;
    let asked = head(&mut server).await.to_ascii_lowercase();
    assert!(asked.contains("expect: 100-continue\r\n"), "{asked}");
    server
        .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        .await
        .unwrap();
    until(&mut world.client, "HTTP/1.1 100 Continue\r\n\r\n").await;
    world.send("body").await;
    until(&mut server, "body").await;
    server.write_all(ok("taken").as_bytes()).await.unwrap();
    until(&mut world.client, "taken").await;
}

#[tokio::test]
async fn a_body_that_its_server_refuses_is_not_asked_for() {
    let mut world = World::new();
    world
        .send("PUT / HTTP/1.1\r\nHost: one\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        .await;
    let mut server = world.dialled("one").await;
    head(&mut server).await;
    let refusal = "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 2\r\n\r\nno";
    server.write_all(refusal.as_bytes()).await.unwrap();
    let said = until(&mut world.client, "no").await;
    assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
}

#[tokio::test]
async fn an_upgrade_makes_a_tunnel_and_nothing_is_lost() {
    let mut world = World::new();
    world
        .send(
            "GET / HTTP/1.1\r\nHost: one\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly",
        )
        .await;
    let mut server = world.dialled("one").await;
    let asked = head(&mut server).await.to_ascii_lowercase();
    for line in ["connection: upgrade\r\n", "upgrade: websocket\r\n"] {
        assert!(asked.contains(line), "{asked}");
    }
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: \
                    websocket\r\n\r\nhello";
    server.write_all(switched.as_bytes()).await.unwrap();
    let said = until(&mut world.client, "hello").await.to_ascii_lowercase();
    assert!(said.contains("upgrade: websocket\r\n"), "{said}");
    until(&mut server, "early").await;
    world.send("GET / HTTP/1.1\r\nHost: two\r\n\r\n").await;
    world.client.shutdown().await.unwrap();
    assert_eq!(
        rest(&mut server).await,
        "GET / HTTP/1.1\r\nHost: two\r\n\r\n",
        "no request any more"
    );
    server.write_all(b"bye").await.unwrap();
    drop(server);
    assert_eq!(rest(&mut world.client).await, "bye");
}

#[tokio::test]
async fn no_server_is_asked_to_switch_to_http2() {
    let mut world = World::new();
    world
        .send(
            "GET / HTTP/1.1\r\nHost: one\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: \
             h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        )
        .await;
    let mut server = world.dialled("one").await;
    let asked = head(&mut server).await.to_ascii_lowercase();
    assert!(
        !asked.contains("h2c") && !asked.contains("http2"),
        "{asked}"
    );
}

#[tokio::test]
async fn an_answer_without_a_length_ends_with_its_server() {
    let mut world = World::new();
    world.send(&get("one")).await;
    let mut server = world.dialled("one").await;
    head(&mut server).await;
    server
        .write_all(b"HTTP/1.0 200 OK\r\n\r\nsome")
        .await
        .unwrap();
    until(&mut world.client, "some\r\n").await;
    server.write_all(b"more").await.unwrap();
    drop(server);
    let said = rest(&mut world.client).await;
    assert!(said.ends_with("more\r\n0\r\n\r\n"), "{said}");
}

#[tokio::test]
async fn a_client_that_has_ended_its_direction_gets_its_answer() {
    let mut world = World::new();
    world.send(&get("one")).await;
    world.client.shutdown().await.unwrap();
    let mut server = world.dialled("one").await;
    head(&mut server).await;
    server.write_all(ok("answer").as_bytes()).await.unwrap();
    assert!(rest(&mut world.client).await.ends_with("answer"));
}

#[tokio::test]
async fn the_answer_to_head_has_its_length_and_no_body() {
    let mut world = World::new();
    world.send("HEAD / HTTP/1.1\r\nHost: one\r\n\r\n").await;
    let mut server = world.dialled("one").await;
    head(&mut server).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        .await
        .unwrap();
    let said = head(&mut world.client).await.to_ascii_lowercase();
    assert!(said.contains("content-length: 9\r\n"), "{said}");
    world.send(&get("one")).await;
    head(&mut server).await;
}
