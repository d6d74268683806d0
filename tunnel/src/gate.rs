//! Between HTTP/2 and TLS. TLS would encrypt frame after frame while the socket is full, and a small
//! message would wait for all of them. So HTTP/2 may write only after TLS has passed on what it was
//! given before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::budget::Budget;
use crate::io::SocketState;

/// A tunnel's connection, as HTTP/2 sees it.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    inner: T,
    socket: SocketState,
    budget: Budget,
}

impl<T> Gate<T> {
    /// From now on, the size of the frames of the budget's tunnel depends on the link below `inner`,
    /// of which `socket` is the handle.
    pub(crate) fn new(inner: T, socket: SocketState, budget: Budget) -> Self {
        socket.limit_queue();
        Self {
            inner,
            socket,
            budget,
        }
    }
}

impl<T: AsyncWrite + Unpin> Gate<T> {
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(context))?;
        self.budget.limit_frames(self.socket.frame_limit());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gate<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, out)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gate<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let gate = self.get_mut();
        ready!(gate.poll_open(context))?;
        Pin::new(&mut gate.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let gate = self.get_mut();
        ready!(gate.poll_open(context))?;
        Pin::new(&mut gate.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};

    use super::*;
    use crate::ReadAhead;

    #[tokio::test]
    async fn what_was_written_before_leaves_for_the_socket_first() {
        let (mut far, near) = tokio::io::duplex(10);
        let near = ReadAhead::new(near);
        let socket = near.socket_state();
        // Takes much more than the socket, as TLS does.
        let tls = BufWriter::with_capacity(1 << 20, near);
        let mut gate = Gate::new(tls, socket, Budget::new(0));
        assert_eq!(gate.write(&[7; 15]).await.unwrap(), 15);
        let next = poll!(std::pin::pin!(gate.write(b"next")));
        assert!(next.is_pending(), "5 bytes wait for the socket");
        far.read_exact(&mut [0; 10]).await.unwrap();
        assert_eq!(gate.write(b"next").await.unwrap(), 4);
    }
}
