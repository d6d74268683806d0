//! The socket of a relay: a client's or a backend's TCP connection, or a client's Unix connection.
//!
//! Both directions use it by `&self`, and hold no buffer while they wait for readiness. Only one
//! task may wait for a direction.

use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::BufMut;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::tcp;

/// How often a Unix socket is checked for a closed peer.
const HANG_UP_INTERVAL: Duration = Duration::from_secs(1);

/// How often a socket is asked whether its bytes were acknowledged, and the first pause.
const ACKNOWLEDGED_INTERVAL: Duration = Duration::from_millis(50);
const ACKNOWLEDGED_FIRST: Duration = Duration::from_millis(1);

/// A connected stream socket.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream.
    Unix(UnixStream),
}

/// A socket between two threads: registered with no thread's reactor.
#[derive(Debug)]
pub enum Detached {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// A Unix stream.
    Unix(std::os::unix::net::UnixStream),
}

impl Detached {
    /// Registers it with the calling thread's reactor.
    ///
    /// # Errors
    /// The reactor takes no more sockets.
    pub fn attach(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(socket) => Socket::Tcp(TcpStream::from_std(socket)?),
            Self::Unix(socket) => Socket::Unix(UnixStream::from_std(socket)?),
        })
    }
}

/// What closing a socket sends to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// RST: the data may be truncated.
    Reset,
    /// FIN, after all data.
    Finish,
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Self {
        Self::Tcp(socket)
    }
}

impl From<UnixStream> for Socket {
    fn from(socket: UnixStream) -> Self {
        Self::Unix(socket)
    }
}

impl Socket {
    /// Removes it from its thread's reactor.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detach(self) -> io::Result<Detached> {
        Ok(match self {
            Self::Tcp(socket) => Detached::Tcp(socket.into_std()?),
            Self::Unix(socket) => Detached::Unix(socket.into_std()?),
        })
    }

    /// Waits until there are bytes, or an end, to read.
    ///
    /// # Errors
    /// The socket cannot be waited for.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|context| match self {
            Self::Tcp(socket) => socket.poll_read_ready(context),
            Self::Unix(socket) => socket.poll_read_ready(context),
        })
        .await
    }

    /// Reads available bytes, up to the capacity of `buffer`; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if there are no bytes yet; otherwise the connection failed.
    pub fn try_read(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        // One read fills no more than this, even if the buffer can grow.
        let capacity = buffer.chunk_mut().len();
        let mut read = None;
        let outcome = self.try_io(Interest::READABLE, || {
            let count = self.try_read_buf(buffer)?;
            read = Some(count);
            // A short read means that no bytes are left: this saves a read that returns nothing.
            if (1..capacity).contains(&count) {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(count)
            }
        });
        match read {
            Some(count) => Ok(count),
            None => outcome,
        }
    }

    fn try_read_buf(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_read_buf(buffer),
            Self::Unix(socket) => socket.try_read_buf(buffer),
        }
    }

    /// Runs `operation`; if it would block, the socket is no longer ready.
    fn try_io<T>(
        &self,
        interest: Interest,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        match self {
            Self::Tcp(socket) => socket.try_io(interest, operation),
            Self::Unix(socket) => socket.try_io(interest, operation),
        }
    }

    /// Waits until bytes can be written.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        poll_fn(|context| match self {
            Self::Tcp(socket) => socket.poll_write_ready(context),
            Self::Unix(socket) => socket.poll_write_ready(context),
        })
        .await
    }

    /// Writes as many bytes as the socket takes now; `WouldBlock` if it takes none.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Tcp(socket) => socket.try_write(bytes),
            Self::Unix(socket) => socket.try_write(bytes),
        }?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(written)
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// How the connection failed.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the direction that writes.
    ///
    /// # Errors
    /// How the connection failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        match self.sock_ref().shutdown(Shutdown::Write) {
            // The peer has closed already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            shut => shut,
        }
    }

    /// Waits until the connection fails, as by a reset, and returns the error. A Unix connection
    /// also fails when its peer closes it.
    pub async fn failure(&self) -> io::Error {
        let ready = match self {
            Self::Tcp(socket) => socket.ready(Interest::ERROR).await,
            Self::Unix(socket) => return hung_up(socket).await,
        };
        match ready.and_then(|_| self.sock_ref().take_error()) {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => io::ErrorKind::ConnectionReset.into(),
        }
    }

    /// Waits until the peer has acknowledged all bytes written, or the connection has failed. It is
    /// polled because no event reports that. A closed Unix socket keeps what was written.
    pub async fn acknowledged(&self) {
        let Self::Tcp(socket) = self else { return };
        let mut pause = ACKNOWLEDGED_FIRST;
        while tcp::awaits_acknowledgement(socket) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ACKNOWLEDGED_INTERVAL);
        }
    }

    /// The address of the peer; `None` for a Unix socket or a closed connection.
    pub(crate) fn peer(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Sets what closing the socket sends. A Unix socket has no RST.
    pub fn on_close(&self, close: Close) {
        let Self::Tcp(_) = self else { return };
        let linger = (close == Close::Reset).then_some(Duration::ZERO);
        if let Err(error) = self.sock_ref().set_linger(linger) {
            tracing::debug!(%error, "set SO_LINGER");
        }
    }

    fn sock_ref(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(socket) => SockRef::from(socket),
            Self::Unix(socket) => SockRef::from(socket),
        }
    }
}

/// Waits until the peer has closed a Unix socket. It is polled because no event reports that alone
/// while there are bytes to read.
async fn hung_up(socket: &UnixStream) -> io::Error {
    loop {
        let mut asked = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let closed = poll(&mut asked, PollTimeout::ZERO).map_err(io::Error::from);
        match closed {
            Err(error) => return error,
            Ok(_)
                if asked[0]
                    .revents()
                    .is_some_and(|events| events.contains(PollFlags::POLLHUP)) =>
            {
                return io::ErrorKind::ConnectionReset.into();
            }
            Ok(_) => tokio::time::sleep(HANG_UP_INTERVAL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_buffer_that_grows_gets_all_that_came_at_once() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = Socket::from(near);
        far.write_all(&[7; 1000]).await.unwrap();
        let mut buffer = BytesMut::new();
        let whole = async {
            while buffer.len() < 1000 {
                near.readable().await.unwrap();
                // Readiness may be spurious.
                near.try_read(&mut (&mut buffer).limit(16 << 10)).ok();
            }
        };
        tokio::time::timeout(Duration::from_secs(5), whole)
            .await
            .expect("all bytes are read");
    }
}
