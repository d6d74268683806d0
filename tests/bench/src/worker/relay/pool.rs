//! TLS connections that are established before their clients connect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::{connect, tls};

/// Connections that wait for clients: more than any row of the bench opens at once, including
/// stalled readers.
const READY: usize = 128;
/// Concurrent handshakes.
const MAKERS: usize = 8;
/// Pause between two attempts while the other half is not running.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections. Clones share them.
#[derive(Clone)]
pub(super) struct Pool {
    ready_rx: Arc<Mutex<Receiver<tls::ClientStream>>>,
    _makers: Arc<JoinSet<()>>,
}

impl Pool {
    /// Starts to make connections.
    pub(super) fn start(far: SocketAddr, config: &tls::Client) -> Self {
        let (ready_tx, ready_rx) = channel(READY);
        let mut makers = JoinSet::new();
        for _ in 0..MAKERS {
            makers.spawn(make(far, config.clone(), ready_tx.clone()));
        }
        Self {
            ready_rx: Arc::new(Mutex::new(ready_rx)),
            _makers: Arc::new(makers),
        }
    }

    /// Waits for a connection that no other client uses.
    pub(super) async fn acquire(&self) -> Result<tls::ClientStream> {
        self.ready_rx
            .lock()
            .await
            .recv()
            .await
            .context("the pool is closed")
    }
}

async fn make(far: SocketAddr, config: tls::Client, ready_tx: Sender<tls::ClientStream>) {
    while let Ok(place) = ready_tx.reserve().await {
        let made = async { tls::connect(&config, connect(far).await?).await };
        match made.await {
            Ok(stream) => place.send(stream),
            Err(error) => {
                eprintln!("pool: {error:#}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
