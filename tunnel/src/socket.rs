//! The socket that a relay stands at: a client's or a backend's TCP connection, or a client's Unix
//! connection.
//!
//! Both directions use it at once by `&self`, and wait for readiness without holding a buffer. One
//! task at a time waits for each direction.

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

/// How often a Unix socket is asked whether its peer has gone.
const HANG_UP_INTERVAL: Duration = Duration::from_secs(1);

/// A connected stream socket.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream.
    Unix(UnixStream),
}

/// A socket that no thread waits for, on its way to the one that will.
#[derive(Debug)]
pub enum Detached {
    /// TCP.
    Tcp(std::net::TcpStream),
    /// A Unix stream.
    Unix(std::os::unix::net::UnixStream),
}

impl Detached {
    /// Has the calling task's thread wait for it from here on.
    ///
    /// # Errors
    /// The thread cannot wait for more sockets.
    pub fn attach(self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(socket) => Socket::Tcp(TcpStream::from_std(socket)?),
            Self::Unix(socket) => Socket::Unix(UnixStream::from_std(socket)?),
        })
    }
}

/// What closing a socket tells its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// RST: what came before may not be all.
    Reset,
    /// FIN, after all that was written.
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
    /// Takes it off the thread that waits for it.
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

    /// Reads what is there, up to the room in `buffer`; 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there yet; else how the connection failed.
    pub fn try_read(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        // What one read may fill: a buffer that grows has more room than that.
        let room = buffer.chunk_mut().len();
        let mut read = None;
        let outcome = self.try_io(Interest::READABLE, || {
            let count = self.try_read_buf(buffer)?;
            read = Some(count);
            // Less than there was room for: nothing is left, which another read would only be told
            // by the kernel.
            if (1..room).contains(&count) {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(count)
            }
        });
        read.map_or(outcome, Ok)
    }

    fn try_read_buf(&self, buffer: &mut impl BufMut) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.try_read_buf(buffer),
            Self::Unix(socket) => socket.try_read_buf(buffer),
        }
    }

    /// Does what `operation` does; the socket is ready no more if that would block.
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

    /// Writes what the socket takes at once; `WouldBlock` if that is nothing.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Tcp(socket) => socket.try_write(bytes),
            Self::Unix(socket) => socket.try_write(bytes),
        };
        written.and_then(|written| {
            if written == 0 {
                Err(io::ErrorKind::WriteZero.into())
            } else {
                Ok(written)
            }
        })
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
            // The peer has closed already, and has all it wanted.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            shut => shut,
        }
    }

    /// Waits until the connection fails, as when its peer resets it, and returns how. A Unix socket
    /// fails when its peer closes it.
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

    /// The address at the other end; none of a Unix socket, or of a connection that is gone.
    pub(crate) fn peer(&self) -> Option<std::net::SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Sets what the socket's close will be. A Unix socket knows no RST.
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

/// Waits until the peer has closed a Unix socket. Nothing wakes for just that while there are bytes
/// to read, so it is asked for.
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
                // It may have been ready for nothing.
                near.try_read(&mut (&mut buffer).limit(16 << 10)).ok();
            }
        };
        tokio::time::timeout(Duration::from_secs(5), whole)
            .await
            .expect("nothing is left behind");
    }
}
