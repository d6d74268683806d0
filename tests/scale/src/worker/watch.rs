//! A watcher of a proxy's directory, as a redirector is.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use culvert_api::proto::directory::WatchRequest;
use culvert_api::proto::directory::directory_client::DirectoryClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};

/// As the redirector allows.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// A change of more nodes is printed without their names.
const NAMED: usize = 64;

/// Arguments: the directory socket.
#[derive(clap::Args)]
pub(crate) struct Args {
    socket: PathBuf,
}

/// Prints `ready` after the snapshot, then each node in a change: its name, followed by ` online` if
/// it is.
pub(crate) fn run(args: &Args) -> Result<()> {
    std::thread::spawn(|| {
        // Without input the parent is gone.
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(watch(args))
}

async fn watch(args: &Args) -> Result<()> {
    let socket = args.socket.clone();
    let connector = tower::service_fn(move |_uri: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://directory.culvert")
        .connect_with_connector(connector)
        .await
        .with_context(|| format!("connect to {}", args.socket.display()))?;
    let mut client = DirectoryClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut updates = client.watch(WatchRequest::default()).await?.into_inner();
    while let Some(update) = updates.message().await? {
        let mut out = std::io::stdout().lock();
        if update.snapshot.is_some() {
            writeln!(out, "ready")?;
        }
        for node in update.nodes.iter().take(NAMED) {
            let online = if node.online { " online" } else { "" };
            writeln!(out, "{}{online}", node.name)?;
        }
        out.flush()?;
    }
    Ok(())
}
