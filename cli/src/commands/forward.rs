//! `culvert forward`: a port of this host that leads to a port of a node.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_api::{NodeName, Query};
use serde::Serialize;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::args::ForwardArgs;
use crate::nearest::nearest_host;
use crate::node_stream::connect_node;
use crate::screen::{Screen, clean};
use crate::session::Session;

/// Connections at the same time.
const MAX_CONNECTIONS: usize = 256;
/// Connections for which hosts are asked at once who has the node: the view limits each user.
const ASKING_AT_ONCE: usize = 4;
/// After an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// What is printed.
#[derive(Debug, Serialize)]
struct Forwarded {
    listens: SocketAddr,
    node: String,
    port: u16,
}

/// What all connections share.
struct Forwarding {
    session: Session,
    node: NodeName,
    port: u16,
    asking: Semaphore,
}

/// Forwards connections until it is interrupted.
///
/// # Errors
/// The port cannot be listened on.
pub(super) async fn run(session: Session, arguments: &ForwardArgs) -> Result<()> {
    let (node, port) = node_and_port(&arguments.destination, 0)?;
    ensure!(
        port != 0,
        "write a port after the node's name, as in {node}:9100"
    );
    let listen = arguments.listen;
    let listen = listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    ensure!(
        listen.ip().is_loopback(),
        "--listen {listen}: only an address of loopback, because who reaches it reaches the node"
    );
    // The node is reachable before clients rely on the port.
    nearest_host(&session, &node).await?;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("listen on {listen}"))?;
    let forwarded = Forwarded {
        listens: listener.local_addr()?,
        node: node.to_string(),
        port,
    };
    session.print(&forwarded, text)?;
    let forwarding = Forwarding {
        session,
        node,
        port,
        asking: Semaphore::new(ASKING_AT_ONCE),
    };
    tokio::select! {
        never = accept(listener, Arc::new(forwarding)) => match never {},
        interrupted = tokio::signal::ctrl_c() => interrupted.context("wait for ^C"),
    }
}

fn text(forwarded: &Forwarded, _screen: &Screen) -> String {
    let Forwarded {
        listens,
        node,
        port,
    } = forwarded;
    format!("{listens} leads to {node}:{port}, until ^C\n")
}

/// All connections end with this.
async fn accept(listener: TcpListener, forwarding: Arc<Forwarding>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                // The system has too many open files: some of them are closed soon.
                eprintln!("# accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if connections.len() < MAX_CONNECTIONS {
            connections.spawn(forwarding.clone().serve(client));
        }
    }
}

impl Forwarding {
    /// An error is said, and ends this connection alone.
    async fn serve(self: Arc<Self>, client: TcpStream) {
        if let Err(error) = self.pass(client).await {
            let Self { node, port, .. } = &*self;
            eprintln!("# {node}:{port}: {}", clean(&format!("{error:#}")));
        }
    }

    async fn pass(&self, mut client: TcpStream) -> Result<()> {
        let Self {
            session,
            node,
            port,
            asking,
        } = self;
        let turn = asking.acquire().await?;
        let host = nearest_host(session, node).await?;
        drop(turn);
        let connected = timeout(session.timeout, connect_node(host, node, *port)).await;
        let connected = connected.context("no answer in time")?;
        let (_connection, mut stream) =
            connected.map_err(|unanswered| anyhow::anyhow!("{}", unanswered.text))?;
        let copied = copy_bidirectional(&mut client, &mut stream).await;
        if copied.is_err() {
            // What the client has may be incomplete: it gets a reset, not an end.
            client.set_zero_linger()?;
        }
        copied.map(drop).context("the connection was cut")
    }
}

/// The name of a node, and a port or the usual one.
///
/// # Errors
/// It is an address.
pub(super) fn node_and_port(destination: &Query, usual_port: u16) -> Result<(NodeName, u16)> {
    let name = destination.host.to_string();
    let node = name.parse::<NodeName>();
    let node =
        node.with_context(|| format!("{name} is no node's name: `culvert nodes` lists them"))?;
    Ok((node, destination.port.unwrap_or(usual_port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_and_without_a_port_is_a_node() {
        let read = |text: &str| {
            let query = text.parse().expect("a destination");
            let (node, port) = node_and_port(&query, 22).expect("a node");
            (node.to_string(), port)
        };
        assert_eq!(read("edge-1"), ("edge-1".to_owned(), 22));
        assert_eq!(read("edge-1:9100"), ("edge-1".to_owned(), 9100));
    }
}
