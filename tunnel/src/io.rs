//! The byte stream below a tunnel's TLS and HTTP/2. It reads ahead into one large buffer, records
//! when bytes last arrived, and limits what waits unsent.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;
use tokio::time::Instant;

use crate::send_queue::{FRAME_FIRST, SendQueue, TunnelSocket, UNSENT_FIRST};
use crate::traffic::Traffic;

/// TLS reads 4 KiB at a time. One read of this size from the socket serves many of these.
const BUFFER: usize = 128 << 10;
/// Bytes after which the tunnel's streams get their turn: payload that waits longer has left the
/// processor's caches when it is written.
const TURN: usize = BUFFER;
/// What TLS adds to a frame at most: a head, the kind and a tag.
const RECORD_OVERHEAD: usize = 64;
/// A write that needs a packet as large as most links carry: 1500 bytes with all heads.
const LARGE: usize = 1_400;
/// A packet that is not acknowledged for this long is lost. The kernel has sent it several times.
const LOST_AFTER: Duration = Duration::from_secs(10);

thread_local! {
    /// A buffer that no socket of this thread uses now.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// What is known about a tunnel's socket: when bytes last arrived, how many pass, and how large
/// frames should be. Clones share it.
#[derive(Clone, Debug)]
pub struct SocketState {
    start: Instant,
    micros: Arc<AtomicU64>,
    traffic: Arc<Traffic>,
    /// The limit of a frame; 0 until the queue is limited.
    frame: Arc<AtomicU32>,
    lost_large: Arc<AtomicBool>,
}

impl SocketState {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            micros: Arc::default(),
            traffic: Arc::default(),
            frame: Arc::default(),
            lost_large: Arc::default(),
        }
    }

    /// Limits from now on what waits unsent to what the link needs.
    pub(crate) fn limit_queue(&self) {
        self.frame.store(FRAME_FIRST, Ordering::Relaxed);
    }

    /// The limit of a frame in bytes.
    pub(crate) fn frame_limit(&self) -> u32 {
        self.frame.load(Ordering::Relaxed)
    }

    /// When bytes last arrived.
    pub(crate) fn last_read(&self) -> Instant {
        self.start + Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    /// Whether bulk data keeps the tunnel busy.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.traffic.is_busy(self.start.elapsed().as_secs())
    }

    /// Whether the socket failed or ended while its peer had acknowledged small packets, and for
    /// long not one large one.
    pub(crate) fn has_lost_large_packets(&self) -> bool {
        self.lost_large.load(Ordering::Relaxed)
    }

    /// Bytes have arrived.
    fn read(&self, bytes: usize) {
        let elapsed = self.start.elapsed();
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.micros.store(micros, Ordering::Relaxed);
        self.traffic.add(bytes, elapsed.as_secs());
    }

    fn wrote(&self, bytes: usize) {
        self.traffic.add(bytes, self.start.elapsed().as_secs());
    }
}

/// A socket with a read buffer that it holds only while there are bytes in it: an idle tunnel holds
/// none.
#[derive(Debug)]
pub struct ReadAhead<T> {
    inner: T,
    ahead: Option<Ahead>,
    socket_state: SocketState,
    /// Bytes read since the tunnel's streams had their turn.
    turn: usize,
    queue: SendQueue,
    /// Bytes that may wait unsent.
    unsent: u32,
    written: Written,
}

/// What was written to a socket.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    bytes: u64,
    /// The same up to the end of the first [`LARGE`] packet, and when it was written.
    first_large: Option<(u64, Instant)>,
}

impl Written {
    fn add(&mut self, bytes: usize, now: Instant) {
        if bytes >= LARGE && self.first_large.is_none() {
            self.first_large = Some((self.bytes + LARGE as u64, now));
        }
        self.bytes += bytes as u64;
    }

    /// Whether large packets were sent long ago, and none of them is among the bytes that were
    /// acknowledged.
    fn lost_large(self, acknowledged: u64, now: Instant) -> bool {
        self.first_large
            .is_some_and(|(end, at)| acknowledged < end && now.duration_since(at) >= LOST_AFTER)
    }
}

/// Bytes read ahead: those of `buffer` from `start` to `end`.
#[derive(Debug)]
struct Ahead {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<T> ReadAhead<T> {
    /// Wraps a socket, below TLS.
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            ahead: None,
            socket_state: SocketState::new(),
            turn: 0,
            queue: SendQueue::new(Instant::now()),
            unsent: UNSENT_FIRST,
            written: Written::default(),
        }
    }

    /// A handle that this wrapper keeps up to date.
    pub fn socket_state(&self) -> SocketState {
        self.socket_state.clone()
    }
}

impl<T: TunnelSocket> ReadAhead<T> {
    /// Completes when the socket may take bytes, with how many. It looks at the link now and then.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.look();
        if self.unsent > UNSENT_FIRST {
            return Poll::Ready(Ok(usize::MAX));
        }
        // A frame is half as long as what may wait, and its TLS record a little longer. The rest of
        // a record would wait until the socket has sent half of all.
        let room = self.unsent as usize / 2 + RECORD_OVERHEAD;
        self.inner.poll_room(context).map_ok(|()| room)
    }

    /// Either end may be the first that gives up.
    fn fails(&self) {
        if let Some(acknowledged) = self.inner.acknowledged()
            && self.written.lost_large(acknowledged, Instant::now())
        {
            self.socket_state.lost_large.store(true, Ordering::Relaxed);
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        if self.socket_state.frame_limit() == 0 || !self.queue.is_due(now) {
            return;
        }
        let unsent = self.inner.unsent();
        let limits = self.queue.after(now, unsent);
        self.unsent = limits.unsent;
        self.inner.limit_unsent(limits.unsent);
        self.socket_state
            .frame
            .store(limits.frame, Ordering::Relaxed);
    }
}

impl Ahead {
    /// Moves bytes to `out`, and returns the rest.
    fn hand_over(mut self, out: &mut ReadBuf<'_>) -> Option<Self> {
        let length = out.remaining().min(self.end - self.start);
        out.put_slice(&self.buffer[self.start..self.start + length]);
        self.start += length;
        if self.start < self.end {
            return Some(self);
        }
        SPARE.set(Some(self.buffer));
        None
    }
}

impl<T: AsyncRead + TunnelSocket + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        let before = out.filled().len();
        let polled = socket.poll_read_ahead(context, out);
        let has_ended = match &polled {
            Poll::Ready(Ok(())) => out.filled().len() == before,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if has_ended {
            socket.fails();
        }
        polled
    }
}

impl<T: AsyncRead + TunnelSocket + Unpin> ReadAhead<T> {
    fn poll_read_ahead(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            inner,
            ahead,
            socket_state,
            turn,
            ..
        } = self;
        // Bytes read ahead count as work too. Otherwise a peer that sends small frames without end
        // would keep the streams' tasks from running, and all of it would wait in memory.
        let progress = ready!(poll_proceed(context));
        if let Some(read) = ahead.take() {
            progress.made_progress();
            *ahead = read.hand_over(out);
            return Poll::Ready(Ok(()));
        }
        if *turn >= TURN {
            *turn = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut buffer = SPARE
            .take()
            .unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice());
        let mut read = ReadBuf::new(&mut buffer);
        let polled = Pin::new(inner).poll_read(context, &mut read);
        let end = read.filled().len();
        *turn += end;
        if end > 0 {
            socket_state.read(end);
        }
        *ahead = Ahead {
            buffer,
            start: 0,
            end,
        }
        .hand_over(out);
        if polled.is_pending() {
            *turn = 0;
        } else {
            progress.made_progress();
        }
        polled
    }
}

impl<T: AsyncWrite + TunnelSocket + Unpin> ReadAhead<T> {
    /// Writes the slices, or of the first one what a slow link has room for.
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let room = ready!(self.poll_room(context))?;
        if room == usize::MAX {
            return Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty());
        let bytes = first.map_or(&[][..], |slice| &slice[..slice.len().min(room)]);
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }
}

impl<T: AsyncWrite + TunnelSocket + Unpin> AsyncWrite for ReadAhead<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        let polled = socket.poll_send(context, slices);
        socket.queue.wrote(&polled);
        match polled {
            Poll::Ready(Ok(bytes)) => {
                socket.written.add(bytes, Instant::now());
                socket.socket_state.wrote(bytes);
            }
            Poll::Ready(Err(_)) => socket.fails(),
            Poll::Pending => {}
        }
        polled
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn reads_ahead_in_order_and_keeps_no_buffer_while_idle() {
        let (mut far, near) = tokio::io::duplex(1 << 20);
        let mut near = ReadAhead::new(near);
        let sent: Vec<u8> = (0..200_000_u32)
            .map(|index| index.to_le_bytes()[0])
            .collect();
        far.write_all(&sent).await.unwrap();
        let mut received = vec![0; sent.len()];
        for piece in received.chunks_mut(4096) {
            near.read_exact(piece).await.unwrap();
        }
        assert_eq!(received, sent);
        let idle = futures_util::poll!(std::pin::pin!(near.read_u8()));
        assert!(idle.is_pending());
        assert!(near.ahead.is_none());
        drop(far);
        assert_eq!(
            near.read(&mut [0; 9]).await.unwrap(),
            0,
            "the end is reported"
        );
    }

    #[test]
    fn a_link_that_has_carried_a_large_packet_does_not_lose_them() {
        let mut written = Written::default();
        let start = Instant::now();
        let later = start + LOST_AFTER;
        written.add(400, start);
        assert!(!written.lost_large(0, later), "nothing large was sent");
        written.add(5_000, start);
        assert!(!written.lost_large(400, start), "it may still come");
        assert!(written.lost_large(400, later));
        assert!(!written.lost_large(400 + 1_448, later));
        written.add(5_000, start);
        assert!(!written.lost_large(5_400, later), "a cut");
    }

    #[tokio::test]
    async fn others_get_their_turn_while_bytes_keep_coming() {
        let (mut far, near) = tokio::io::duplex(1 << 20);
        let mut near = ReadAhead::new(near);
        far.write_all(&[7; 1 << 20]).await.unwrap();
        let mut read = 0;
        let mut buffer = [0; 4096];
        while let Poll::Ready(count) = futures_util::poll!(std::pin::pin!(near.read(&mut buffer))) {
            read += count.unwrap();
        }
        assert_eq!(read, TURN);
        assert_eq!(
            near.read(&mut buffer).await.unwrap(),
            buffer.len(),
            "it goes on by itself"
        );
    }
}
