//! A long link: forwards TCP connections and delays each byte by half a round trip. In each
//! direction of a connection, at most a window of bytes is in flight, as with TCP over such a link.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Small, so that data that exceeds the link's window waits in the sender's own socket, as with a
/// real link.
const SOCKET_BUFFER: u32 = 256 << 10;
/// The average delay that the runtime's clock and the copying add, by measurement. The clock wakes
/// at the next millisecond, half of one late on average.
const LATENESS: Duration = Duration::from_millis(1);
/// Size of one read. A full link waits until it has capacity for a whole piece, as TCP does. If it
/// used every few free bytes at once, pieces would shrink and never grow again, until moving them
/// took all processor time.
const PIECE: usize = 64 << 10;

/// Arguments of the link.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    to: SocketAddr,
    /// Milliseconds there and back
    #[arg(long)]
    round_trip: u64,
    /// Bytes under way in each direction of a connection
    #[arg(long)]
    window: usize,
}

/// Bytes, and the time when they arrive at the other end.
type Late = (Instant, Bytes);
/// The number of bytes that arrived, and the time when the sender learns of it.
type Acknowledged = (Instant, usize);

/// Serves until it is killed.
pub(crate) fn run(args: Args) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(args))
}

async fn serve(args: Args) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket
        .bind(args.listen)
        .with_context(|| format!("listen on {}", args.listen))?;
    let listener = socket.listen(1024)?;
    let mut links = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await?;
        while links.try_join_next().is_some() {}
        let to = args.to;
        let window = args.window;
        let delay = (Duration::from_millis(args.round_trip) / 2).saturating_sub(LATENESS);
        links.spawn(async move {
            // The clients see how it ended.
            link(near, to, delay, window).await.ok();
        });
    }
}

async fn link(near: TcpStream, to: SocketAddr, delay: Duration, window: usize) -> io::Result<()> {
    // The handshake takes a round trip too.
    tokio::time::sleep(delay * 2).await;
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    let far = socket.connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::try_join!(
        direction(near_read, far_write, delay, window),
        direction(far_read, near_write, delay, window)
    )?;
    Ok(())
}

async fn direction(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    delay: Duration,
    window: usize,
) -> io::Result<()> {
    let (late_tx, late_rx) = unbounded_channel();
    let (acknowledged_tx, acknowledged_rx) = unbounded_channel();
    let window = Window {
        room: window,
        acknowledged_rx,
        next: None,
    };
    tokio::try_join!(
        enter(from, late_tx, window, delay),
        leave(to, late_rx, acknowledged_tx, delay)
    )?;
    Ok(())
}

async fn enter(
    mut from: OwnedReadHalf,
    late_tx: UnboundedSender<Late>,
    mut window: Window,
    delay: Duration,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        let Some(room) = window.room().await else {
            return Ok(());
        };
        buffer.reserve(PIECE);
        let count = (&mut from)
            .take(room.min(PIECE) as u64)
            .read_buf(&mut buffer)
            .await?;
        if count == 0
            || late_tx
                .send((Instant::now() + delay, fitted(buffer.split())))
                .is_err()
        {
            return Ok(());
        }
        window.room -= count;
    }
}

/// Copies a small piece into a buffer of its own length: thousands of them may be in flight.
fn fitted(piece: BytesMut) -> Bytes {
    if piece.len() < PIECE / 4 {
        Bytes::copy_from_slice(&piece)
    } else {
        piece.freeze()
    }
}

/// How many more bytes may be in flight.
struct Window {
    room: usize,
    acknowledged_rx: UnboundedReceiver<Acknowledged>,
    next: Option<Acknowledged>,
}

impl Window {
    /// Waits until the window has capacity for a whole piece; `None` once the other end accepts no
    /// more.
    async fn room(&mut self) -> Option<usize> {
        loop {
            if self.next.is_none() {
                self.next = self.acknowledged_rx.try_recv().ok();
            }
            match self.next {
                Some((at, count)) if at <= Instant::now() => {
                    self.room += count;
                    self.next = None;
                }
                _ if self.room >= PIECE => return Some(self.room),
                Some((at, _)) => sleep_until(at).await,
                None => self.next = Some(self.acknowledged_rx.recv().await?),
            }
        }
    }
}

async fn leave(
    mut to: OwnedWriteHalf,
    mut late_rx: UnboundedReceiver<Late>,
    acknowledged_tx: UnboundedSender<Acknowledged>,
    delay: Duration,
) -> io::Result<()> {
    while let Some((at, bytes)) = late_rx.recv().await {
        sleep_until(at).await;
        to.write_all(&bytes).await?;
        // The receiver is gone once the other end has ended its direction.
        acknowledged_tx
            .send((Instant::now() + delay, bytes.len()))
            .ok();
    }
    to.shutdown().await
}
