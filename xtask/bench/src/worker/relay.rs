//! The relays that Culvert is compared with. Each has two hops in two processes like Culvert, with
//! the same buffers, allocator and TLS settings, but no tunnel. The plain one copies TCP; the TLS
//! one uses one TLS 1.3 connection from a pool for each client.

mod pool;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes,
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
}

/// Serves clients until it is killed.
pub(crate) fn near(args: NearArgs) -> Result<()> {
    runtime()?.block_on(async {
        let listener = listen(args.listen).await?;
        let pool = match &args.certificate {
            Some(path) => Some(Pool::start(args.far, &tls::client_config(path)?)),
            None => None,
        };
        accept(listener, async move |client| match pool {
            Some(pool) => relay(client, pool.take().await?).await,
            None => relay(client, connect(args.far).await?).await,
        })
        .await
    })
}

/// Serves the near half until it is killed.
pub(crate) fn far(args: FarArgs) -> Result<()> {
    runtime()?.block_on(async {
        // The certificate comes first: a process that sees the port open may read it.
        let acceptor = args.certificate.as_deref().map(tls::acceptor).transpose()?;
        let listener = listen(args.listen).await?;
        accept(listener, async move |near| match acceptor {
            Some(acceptor) => {
                let mut near = tls::accept(&acceptor, near).await?;
                // A connection of the pool waits here for a client, which sends first.
                let first = first_bytes(&mut near).await?;
                let mut backend = connect(args.backend).await?;
                backend.write_all(&first).await?;
                drop(first);
                relay(near, backend).await
            }
            None => relay(near, connect(args.backend).await?).await,
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

async fn relay<A, B>(mut near: A, mut far: B) -> Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    copy_bidirectional_with_sizes(&mut near, &mut far, BUFFER, BUFFER).await?;
    Ok(())
}
