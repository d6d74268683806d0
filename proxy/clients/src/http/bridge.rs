//! Copies between a client whose connection became a tunnel and the Unix socket through which it is
//! served.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_tunnel::RelayError;
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, WriteHalf};
use tokio::net::unix::OwnedReadHalf;

use super::opened::Opened;

/// Bytes that are copied into or out of TLS in one step.
pub(crate) const COPIED_AT_ONCE: usize = 64 << 10;
/// The time after which a client that takes none of the last bytes is given up.
pub(crate) const STALLED: Duration = Duration::from_secs(300);

/// Copies between a connection and its client until both directions have ended. `first` are bytes
/// that the backend has sent already.
pub(crate) async fn bridge(
    opened: Opened,
    first: Bytes,
    client: impl AsyncRead + AsyncWrite,
) -> Result<(), RelayError> {
    let Opened { socket, mut relay } = opened;
    let (from_client, to_client) = tokio::io::split(client);
    let mut from_client = BufReader::with_capacity(COPIED_AT_ONCE, from_client);
    let (from_backend, mut to_backend) = socket.into_split();
    let moved = AtomicU64::new(0);
    let inward = async {
        tokio::io::copy_buf(&mut from_client, &mut to_backend).await?;
        to_backend.shutdown().await
    };
    let outward = copy_to_client(first, from_backend, to_client, &moved);
    both_ways(relay.ended(), inward, outward, &moved, STALLED).await
}

/// Runs both directions until `relayed` has ended and the client has taken everything, however long
/// it needs, as long as it takes some bytes within `stalled`: `outward` adds them to `moved`.
pub(crate) async fn both_ways(
    relayed: impl Future<Output = Result<(), RelayError>>,
    inward: impl Future<Output = io::Result<()>>,
    outward: impl Future<Output = io::Result<()>>,
    moved: &AtomicU64,
    stalled: Duration,
) -> Result<(), RelayError> {
    let mut inward = pin!(inward.fuse());
    let mut outward = pin!(outward.fuse());
    let mut relayed = pin!(relayed);
    let mut said_all = false;
    loop {
        tokio::select! {
            biased;
            relayed = relayed.as_mut() => break relayed?,
            ended = inward.as_mut() => ended.map_err(RelayError::Socket)?,
            ended = outward.as_mut() => {
                ended.map_err(RelayError::Socket)?;
                said_all = true;
            }
        }
    }
    let mut before = moved.load(Ordering::Relaxed);
    while !said_all {
        tokio::select! {
            biased;
            ended = outward.as_mut() => {
                ended.map_err(RelayError::Socket)?;
                said_all = true;
            }
            // What the client still sends is of no use. It is read so that the client does not
            // block.
            _ = inward.as_mut() => {}
            () = tokio::time::sleep(stalled) => {
                let now = moved.load(Ordering::Relaxed);
                if now == before {
                    return Err(RelayError::Socket(io::ErrorKind::TimedOut.into()));
                }
                before = now;
            }
        }
    }
    Ok(())
}

/// Copies `first`, and then until the proxy has sent everything, then ends the client's direction. Adds
/// the bytes that the client's connection took to `moved`.
async fn copy_to_client<T: AsyncWrite>(
    first: Bytes,
    mut from: OwnedReadHalf,
    mut to: WriteHalf<T>,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = BytesMut::from(first);
    loop {
        while !buffer.is_empty() {
            let written = to.write_buf(&mut buffer).await?;
            moved.fetch_add(written as u64, Ordering::Relaxed);
        }
        // TLS keeps the bytes that the socket does not take.
        to.flush().await?;
        buffer.reserve(COPIED_AT_ONCE);
        if from.read_buf(&mut buffer).await? == 0 {
            return to.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use culvert_tunnel::Close;
    use rustls::ServerConfig;
    use tokio::net::{TcpStream, UnixStream};
    use tokio::time::timeout;

    use super::super::watch;
    use super::*;

    /// The bytes that are sent to a TLS client. Most of them are still in transit when the last one
    /// is written.
    const SAID: usize = 4 << 20;

    /// Bridges [`SAID`] bytes to a client that reads until all are written, then pauses, then
    /// continues. `ends` is notified when the bridge has ended. Returns the result of the bridge
    /// and the bytes that the client got.
    async fn bridged(
        stalled: Duration,
        pause: impl Future<Output = ()>,
        ends: &tokio::sync::Notify,
    ) -> (Result<(), RelayError>, io::Result<usize>) {
        let key = rcgen::generate_simple_self_signed(vec!["proxy".to_owned()]).unwrap();
        let der =
            rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let server = server
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], der)
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(key.cert.der().clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (dialled, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
        let dialled = dialled.unwrap();
        let accepted = accepted.unwrap().0;
        socket2::SockRef::from(&dialled)
            .set_recv_buffer_size(16 << 10)
            .unwrap();
        socket2::SockRef::from(&accepted)
            .set_send_buffer_size(16 << 10)
            .unwrap();
        let watch = watch(&accepted).unwrap();
        watch.on_close(Close::Reset);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let name = "proxy".try_into().unwrap();
        let (accepted, connected) =
            tokio::join!(acceptor.accept(accepted), connector.connect(name, dialled));
        let accepted = accepted.unwrap();
        let mut client = connected.unwrap();

        let (mut near, far) = UnixStream::pair().unwrap();
        let said = std::cell::Cell::new(false);
        let served = async {
            near.write_all(&vec![7; SAID])
                .await
                .map_err(RelayError::Socket)?;
            said.set(true);
            drop(near);
            Ok(())
        };
        let bridge = async {
            let (mut from_client, to_client) = tokio::io::split(accepted);
            let (from_backend, mut to_backend) = far.into_split();
            let moved = AtomicU64::new(0);
            let inward = async {
                tokio::io::copy(&mut from_client, &mut to_backend)
                    .await
                    .map(drop)
            };
            let outward = copy_to_client(Bytes::new(), from_backend, to_client, &moved);
            let ended = tokio::select! {
                ended = both_ways(served, inward, outward, &moved, stalled) => ended,
                failed = watch.failure() => Err(RelayError::Socket(failed)),
            };
            if ended.is_ok() {
                watch.on_close(Close::Finish);
            }
            drop(watch);
            ends.notify_one();
            ended
        };
        let reader = async {
            let mut got = 0;
            let mut buffer = vec![0; 4 << 10];
            while !said.get() {
                got += client.read(&mut buffer).await?;
            }
            pause.await;
            loop {
                match client.read(&mut buffer).await? {
                    0 => return Ok(got),
                    read => got += read,
                }
            }
        };
        tokio::join!(bridge, reader)
    }

    #[tokio::test]
    async fn a_client_of_tls_that_pauses_at_the_end_gets_all_that_was_said() {
        // The bridge has time to give up.
        let pause = tokio::time::sleep(Duration::from_millis(200));
        let ends = tokio::sync::Notify::new();
        let both = timeout(
            Duration::from_secs(60),
            bridged(Duration::from_secs(3600), pause, &ends),
        )
        .await;
        let (ended, got) = both.unwrap();
        ended.unwrap();
        assert_eq!(got.unwrap(), SAID);
    }

    #[tokio::test]
    async fn a_client_of_tls_that_never_takes_the_rest_does_not_read_an_orderly_end() {
        let ends = Arc::new(tokio::sync::Notify::new());
        let both = timeout(
            Duration::from_secs(60),
            bridged(Duration::from_millis(100), ends.notified(), &ends),
        )
        .await;
        let (ended, got) = both.unwrap();
        assert!(ended.is_err(), "it is a cut");
        assert!(got.is_err(), "{got:?} bytes of {SAID} look like all");
    }
}
