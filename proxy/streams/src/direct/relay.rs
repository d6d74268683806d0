//! Relays between two sockets of this host with the same semantics as a tunnel: each direction ends
//! on its own, and a failure resets both sockets.

use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_tunnel::{Close, Meter, RelayError, Socket, Transferred};
use tokio::time::timeout;

/// The time for which one side can continue after the other has gone.
const PARTING: Duration = Duration::from_secs(2);
/// The most that a socket delivers at once.
const BUFFER: usize = 64 << 10;

/// Relays until both directions have ended. `pipelined` is what the client sent before its backend
/// had answered.
pub async fn relay(
    client: Socket,
    backend: Socket,
    pipelined: Bytes,
    transferred: &Transferred,
) -> Result<(), RelayError> {
    let to_backend = async {
        backend.write_all(&pipelined).await?;
        transferred.into_tunnel.add(&pipelined);
        copy(&client, &backend, &transferred.into_tunnel).await
    };
    let to_client = copy(&backend, &client, &transferred.out_of_tunnel);
    let relayed = {
        let mut to_backend = pin!(to_backend);
        let mut to_client = pin!(to_client);
        tokio::select! {
            ended = to_backend.as_mut() => match ended {
                Ok(()) => second_half(to_client, &client).await,
                Err(error) => Err(error),
            },
            ended = to_client.as_mut() => match ended {
                Ok(()) => second_half(to_backend, &backend).await,
                Err(error) => Err(error),
            },
        }
    };
    let close = if relayed.is_ok() {
        Close::Finish
    } else {
        Close::Reset
    };
    client.on_close(close);
    backend.on_close(close);
    relayed.map_err(RelayError::Socket)
}

/// Runs the remaining direction. The direction from `reader` has ended, so only its failure shows
/// that its peer has gone completely. The other side then has some time to end by itself.
async fn second_half(
    mut left: Pin<&mut impl Future<Output = io::Result<()>>>,
    reader: &Socket,
) -> io::Result<()> {
    tokio::select! {
        biased;
        ended = left.as_mut() => ended,
        gone = reader.failure() => timeout(PARTING, left).await.unwrap_or(Err(gone)),
    }
}

async fn copy(from: &Socket, to: &Socket, meter: &Meter) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        from.readable().await?;
        buffer.reserve(BUFFER);
        match from.try_read(&mut buffer) {
            Ok(0) => return to.shutdown_write(),
            Ok(read) => {
                to.write_all(&buffer).await?;
                meter.add(&buffer);
                buffer.clear();
                if read == BUFFER {
                    continue;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        // Nothing is left to read: an idle connection holds no buffer.
        buffer = BytesMut::new();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(
            TcpStream::connect(listener.local_addr().unwrap()),
            listener.accept()
        );
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn each_direction_ends_on_its_own_and_is_counted() {
        let (mut client, near) = pair().await;
        let (far, mut backend) = pair().await;
        let transferred = Transferred::default();
        let relayed = relay(
            near.into(),
            far.into(),
            Bytes::from_static(b"early "),
            &transferred,
        );
        let both = async {
            client.write_all(b"request").await.unwrap();
            client.shutdown().await.unwrap();
            let mut request = String::new();
            backend.read_to_string(&mut request).await.unwrap();
            assert_eq!(request, "early request");
            backend.write_all(&[7; 1 << 20]).await.unwrap();
            drop(backend);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer.len(), 1 << 20);
        };
        let (relayed, ()) = timeout(Duration::from_secs(10), async {
            tokio::join!(relayed, both)
        })
        .await
        .unwrap();
        relayed.unwrap();
        assert_eq!(transferred.into_tunnel.bytes(), 13);
        assert_eq!(transferred.out_of_tunnel.bytes(), 1 << 20);
    }

    #[tokio::test]
    async fn a_client_that_has_gone_takes_with_it_a_backend_that_heeds_no_end() {
        let (client, near) = UnixStream::pair().unwrap();
        let (far, mut backend) = pair().await;
        drop(client);
        let transferred = Transferred::default();
        let relayed = relay(near.into(), far.into(), Bytes::new(), &transferred);
        timeout(Duration::from_secs(30), relayed)
            .await
            .expect("it ends")
            .unwrap_err();
        backend
            .write_all(b"to nobody")
            .await
            .expect_err("it was reset behind the client's end");
    }

    #[tokio::test]
    async fn a_client_that_has_gone_leaves_a_backend_the_time_to_end() {
        let (client, near) = UnixStream::pair().unwrap();
        let (far, mut backend) = pair().await;
        drop(client);
        let transferred = Transferred::default();
        let relayed = relay(near.into(), far.into(), Bytes::new(), &transferred);
        let heeds = async {
            assert_eq!(backend.read(&mut [0]).await.unwrap(), 0);
            drop(backend);
        };
        let (relayed, ()) = timeout(Duration::from_secs(30), async {
            tokio::join!(relayed, heeds)
        })
        .await
        .unwrap();
        relayed.unwrap();
    }

    #[tokio::test]
    async fn a_backend_that_resets_resets_the_client() {
        let (mut client, near) = pair().await;
        let (far, backend) = pair().await;
        Socket::from(backend).on_close(Close::Reset);
        let transferred = Transferred::default();
        let relayed = timeout(
            Duration::from_secs(10),
            relay(near.into(), far.into(), Bytes::new(), &transferred),
        );
        assert!(relayed.await.unwrap().is_err());
        let read = timeout(Duration::from_secs(10), client.read(&mut [0]))
            .await
            .unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
