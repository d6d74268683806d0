//! Reads of one connection in turns: the hub has one thread, and a client that sends without an end
//! must leave time for the others, and for the tasks that take what it has sent. One that sends too many
//! control frames of HTTP/2 is no longer read.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::control_frames::ControlFrames;

/// How much of a connection is read in one turn: a record of TLS.
const TURN: usize = 16 << 10;

/// A connection whose reader yields after each turn.
pub(super) struct ReadTurns<S> {
    stream: S,
    /// In this turn.
    read: usize,
    /// `None`: they are not limited.
    frames: Option<ControlFrames>,
}

impl<S> ReadTurns<S> {
    pub(super) const fn new(stream: S, frames: Option<ControlFrames>) -> Self {
        Self {
            stream,
            read: 0,
            frames,
        }
    }

    fn record_written(&mut self, polled: &Poll<Result<usize>>) {
        if let (Some(frames), Poll::Ready(Ok(bytes))) = (&mut self.frames, polled) {
            frames.record_written(*bytes);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadTurns<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if self.read >= TURN {
            self.read = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_pending() {
            self.read = 0;
            return polled;
        }
        let read = &buffer.filled()[before..];
        self.read += read.len();
        if let Some(frames) = &mut self.frames {
            frames.record_read(read)?;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadTurns<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record_written(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.record_written(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_reader_of_an_endless_stream_yields() {
        let mut endless = ReadTurns::new(tokio::io::repeat(0), None);
        let mut context = Context::from_waker(Waker::noop());
        let mut space = [0; 4 << 10];
        let mut reads = 0;
        for _ in 0..100 {
            let mut buffer = ReadBuf::new(&mut space);
            let polled = Pin::new(&mut endless).poll_read(&mut context, &mut buffer);
            reads += usize::from(polled.is_ready());
        }
        assert_eq!(reads, 80);
    }
}
