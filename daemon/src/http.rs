//! HTTP/1 for operators and scrapers: a limited number of connections, each with limits on memory
//! and time.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Limit of concurrent connections. One more ends the oldest, so that a client which holds them all
/// does not exclude others.
const MAX_CONNECTIONS: usize = 64;
/// Limit of a request's head in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Pause after a failed accept, as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Limit for a request's head, and for the pause between two requests.
    head: Duration,
    /// After this time the connection ends with its present request. Otherwise a client that reads
    /// nothing would stay for ever.
    age: Duration,
    /// Limit for that last request.
    parting: Duration,
}

/// A scraper with an interval of 15 s keeps its connection.
const LIMITS: Limits = Limits {
    head: Duration::from_secs(30),
    age: Duration::from_secs(300),
    parting: Duration::from_secs(10),
};

/// Serves what `accept` returns, for ever.
pub async fn serve_http<S, A>(accept: impl Fn() -> A, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Future<Output = io::Result<S>>,
{
    let mut connections = JoinSet::new();
    let mut by_age = VecDeque::<AbortHandle>::new();
    loop {
        let connection = match accept().await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(%error, "accept an operator's connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        by_age.retain(|connection| !connection.is_finished());
        if by_age.len() >= MAX_CONNECTIONS
            && let Some(oldest) = by_age.pop_front()
        {
            oldest.abort();
        }
        by_age.push_back(connections.spawn(serve_one(connection, router.clone(), LIMITS)));
    }
}

async fn serve_one<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: S,
    router: Router,
    limits: Limits,
) {
    let mut server = http1::Builder::new();
    // A client that sends a request and ends its direction, as `nc` does, still waits for the
    // answer.
    server
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD);
    let mut served =
        pin!(server.serve_connection(TokioIo::new(connection), TowerToHyperService::new(router)));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = sleep(limits.age) => {
            served.as_mut().graceful_shutdown();
            timeout(limits.parting, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an operator's connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

    fn router() -> Router {
        Router::new().route("/", get(async || "here"))
    }

    #[tokio::test]
    async fn whoever_holds_all_connections_locks_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept = || async { listener.accept().await.map(|(connection, _)| connection) };
        let client = async {
            let mut silent = Vec::new();
            for _ in 0..2 * MAX_CONNECTIONS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(REQUEST).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("here"), "{answer}");
            // One after the other, the oldest connections were ended.
            for mut ended in silent.drain(..MAX_CONNECTIONS) {
                assert!(matches!(ended.read(&mut [0]).await, Ok(0) | Err(_)));
            }
        };
        let both = async {
            tokio::select! {
                () = serve_http(accept, router()) => {}
                () = client => {}
            }
        };
        timeout(Duration::from_secs(20), both).await.unwrap();
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn half_a_request_is_not_waited_for() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&REQUEST[..20]).await.unwrap();
        let limits = Limits {
            head: Duration::from_millis(50),
            age: LONG,
            parting: LONG,
        };
        timeout(Duration::from_secs(20), serve_one(near, router(), limits))
            .await
            .expect("it ends");
    }

    #[tokio::test]
    async fn a_client_that_has_said_all_still_gets_its_answer() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(REQUEST).await.unwrap();
        far.shutdown().await.unwrap();
        let limits = Limits {
            head: LONG,
            age: LONG,
            parting: LONG,
        };
        let mut answer = String::new();
        let (read, ()) = tokio::join!(
            far.read_to_string(&mut answer),
            serve_one(near, router(), limits)
        );
        read.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_does_not_stay() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let large = Router::new().route("/", get(async || vec![0; 16 << 20]));
        far.write_all(REQUEST).await.unwrap();
        let limits = Limits {
            head: LONG,
            age: Duration::from_millis(50),
            parting: Duration::from_millis(50),
        };
        timeout(Duration::from_secs(20), serve_one(near, large, limits))
            .await
            .expect("it ends");
    }
}
