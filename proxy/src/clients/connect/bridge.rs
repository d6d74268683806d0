//! Copies between a TLS client and the Unix socket through which it is served.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use culvert_tunnel::{RelayError, Socket};
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// Bytes that are copied into TLS in one step.
const COPIED_AT_ONCE: usize = 64 << 10;

/// Runs `served`, which talks to the peer of `far`, and copies between `far` and the client. The
/// last bytes are still sent, however long the client needs, as long as it takes some of them
/// within `stalled`.
pub(super) async fn bridge(
    served: impl Future<Output = Result<(), RelayError>>,
    tls: TlsStream<TcpStream>,
    far: UnixStream,
    watch: &Socket,
    stalled: Duration,
) -> Result<(), RelayError> {
    let (mut from_client, to_client) = tokio::io::split(tls);
    let (from_proxy, mut to_proxy) = far.into_split();
    let moved = AtomicU64::new(0);
    let inward = async {
        tokio::io::copy(&mut from_client, &mut to_proxy).await?;
        to_proxy.shutdown().await
    };
    let outward = copy_into_tls(from_proxy, to_client, &moved);
    let (mut inward, mut outward) = (pin!(inward.fuse()), pin!(outward.fuse()));
    let mut served = pin!(served);
    let mut said_all = false;
    loop {
        tokio::select! {
            biased;
            served = served.as_mut() => break served?,
            ended = inward.as_mut() => ended.map_err(RelayError::Socket)?,
            ended = outward.as_mut() => {
                ended.map_err(RelayError::Socket)?;
                said_all = true;
            }
            failed = watch.failure() => return Err(RelayError::Socket(failed)),
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
            // Nobody reads what the client still sends. It is read so that the client does not
            // block.
            _ = inward.as_mut() => {}
            failed = watch.failure() => return Err(RelayError::Socket(failed)),
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

/// Copies until the proxy has sent everything, then ends the client's TLS. Adds the bytes that TLS
/// took to `moved`.
async fn copy_into_tls(
    mut from: OwnedReadHalf,
    mut to: WriteHalf<TlsStream<TcpStream>>,
    moved: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(COPIED_AT_ONCE);
    while from.read_buf(&mut buffer).await? > 0 {
        while !buffer.is_empty() {
            let written = to.write_buf(&mut buffer).await?;
            moved.fetch_add(written as u64, Ordering::Relaxed);
        }
        // TLS keeps the bytes that the socket does not take.
        to.flush().await?;
    }
    to.shutdown().await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use culvert_tunnel::Close;
    use rustls::ServerConfig;
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
        let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap().0);
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
        let (accepted, mut client) = (accepted.unwrap(), connected.unwrap());

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
            let ended = bridge(served, accepted, far, &watch, stalled).await;
            if ended.is_ok() {
                watch.on_close(Close::Finish);
            }
            drop(watch);
            ends.notify_one();
            ended
        };
        let reader = async {
            let (mut got, mut buffer) = (0, vec![0; 4 << 10]);
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
