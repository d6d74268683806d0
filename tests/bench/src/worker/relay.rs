//! The relays that Culvert is compared with, as good as they can be. Each has two hops in two
//! processes like Culvert, with the same buffers, allocator and TLS settings, but no tunnel. The
//! plain one copies TCP; the TLS one uses one TLS 1.3 connection from a pool for each client. A second
//! TLS one is as simple as most relays: no buffer below TLS, and tokio's own copying.

mod pool;
mod tls;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy_bidirectional_with_sizes,
    split,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use pool::Pool;

/// Buffer size of each direction of a connection.
const BUFFER: usize = 64 << 10;

/// Arguments of the half near the clients.
#[derive(clap::Args)]
pub(crate) struct NearArgs {
    #[arg(long)]
    listen: SocketAddr,
    /// The other half
    #[arg(long)]
    far: SocketAddr,
    /// The certificate of the other half: speak TLS
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// Without a buffer below TLS, and with tokio's own copying
    #[arg(long)]
    simple: bool,
}

/// Arguments of the half near the backend.
#[derive(clap::Args)]
pub(crate) struct FarArgs {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    backend: SocketAddr,
    /// Speak TLS, with a new certificate that is written here
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// Without a buffer below TLS, and with tokio's own copying
    #[arg(long)]
    simple: bool,
}

/// How the halves copy.
#[derive(Clone, Copy)]
enum Copying {
    /// As Culvert reads and writes.
    Gathered,
    /// As most relays do.
    Simple,
}

impl Copying {
    fn of(is_simple: bool) -> Self {
        if is_simple {
            Self::Simple
        } else {
            Self::Gathered
        }
    }

    /// Bytes of the buffer below TLS. TLS reads past a buffer that is no larger than its own.
    fn read_buffer(self) -> usize {
        match self {
            Self::Gathered => tls::READ_BUFFER,
            Self::Simple => 1,
        }
    }

    async fn relay<A, B>(self, mut near: A, mut far: B) -> Result<()>
    where
        A: AsyncRead + AsyncWrite + Unpin,
        B: AsyncRead + AsyncWrite + Unpin,
    {
        match self {
            Self::Gathered => relay(near, far).await,
            Self::Simple => {
                copy_bidirectional_with_sizes(&mut near, &mut far, BUFFER, BUFFER).await?;
                Ok(())
            }
        }
    }
}

/// Serves clients until it is killed.
pub(crate) fn near(args: NearArgs) -> Result<()> {
    let copying = Copying::of(args.simple);
    runtime()?.block_on(async {
        let listener = listen(args.listen).await?;
        let pool = match &args.certificate {
            Some(path) => {
                let config = tls::client_config(path, copying.read_buffer())?;
                Some(Pool::start(args.far, &config))
            }
            None => None,
        };
        accept(listener, async move |client| match pool {
            Some(pool) => copying.relay(client, pool.acquire().await?).await,
            None => copying.relay(client, connect(args.far).await?).await,
        })
        .await
    })
}

/// Serves the near half until it is killed.
pub(crate) fn far(args: FarArgs) -> Result<()> {
    let copying = Copying::of(args.simple);
    runtime()?.block_on(async {
        // The certificate comes first: a process that sees the port open may read it.
        let acceptor = args.certificate.as_deref().map(tls::acceptor).transpose()?;
        let listener = listen(args.listen).await?;
        accept(listener, async move |near| match acceptor {
            Some(acceptor) => {
                let mut near = tls::accept(&acceptor, near, copying.read_buffer()).await?;
                // A connection of the pool waits here for a client, which sends first.
                let first = first_bytes(&mut near).await?;
                let mut backend = connect(args.backend).await?;
                backend.write_all(&first).await?;
                drop(first);
                copying.relay(near, backend).await
            }
            None => copying.relay(near, connect(args.backend).await?).await,
        })
        .await
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))
}

async fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn first_bytes(near: &mut tls::ServerStream) -> Result<Vec<u8>> {
    let mut first = Vec::with_capacity(4 << 10);
    near.read_buf(&mut first).await?;
    Ok(first)
}

async fn accept<S, F>(listener: TcpListener, serve: S) -> Result<()>
where
    S: FnOnce(TcpStream) -> F + Clone,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        client.set_nodelay(true)?;
        let served = serve.clone()(client);
        connections.spawn(async move {
            // The client sees how it ended.
            served.await.ok();
        });
    }
}

async fn relay<A, B>(near: A, far: B) -> Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (from_near, to_near) = split(near);
    let (from_far, to_far) = split(far);
    tokio::try_join!(copy(from_near, to_far), copy(from_far, to_near))?;
    Ok(())
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut space = vec![0; BUFFER];
    loop {
        let mut buffer = ReadBuf::new(&mut space);
        poll_fn(|context| poll_fill(&mut from, &mut buffer, context)).await?;
        if buffer.filled().is_empty() {
            return to.shutdown().await;
        }
        to.write_all(buffer.filled()).await?;
        to.flush().await?;
    }
}

/// Reads what is there. TLS hands over 16 KiB at a time, and one write should take all of them.
fn poll_fill(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut ReadBuf<'_>,
    context: &mut Context<'_>,
) -> Poll<std::io::Result<()>> {
    loop {
        let before = buffer.filled().len();
        match Pin::new(&mut *from).poll_read(context, buffer)? {
            Poll::Pending if before == 0 => return Poll::Pending,
            Poll::Ready(()) if buffer.filled().len() > before && buffer.remaining() > 0 => {}
            Poll::Pending | Poll::Ready(()) => return Poll::Ready(Ok(())),
        }
    }
}
