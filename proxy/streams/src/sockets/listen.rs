//! What all of the proxy's listeners share: dual-stack sockets, accepting without a busy loop, and
//! bounded connections.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, Listeners, LogBudget, SocketUse};
use futures_util::FutureExt;
use nix::errno::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::sockets::local_socket::LocalSocket;

/// The length of the accept queue.
const BACKLOG: i32 = 4096;
/// The pause after a failed accept, for example without free descriptors: long enough to avoid a
/// busy loop, short enough to stay unnoticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes a TCP port over from the proxy before, or binds it. An unspecified IPv6 address accepts
/// IPv4 too, and becomes 0.0.0.0 on a host without IPv6.
///
/// # Errors
///
/// The port is taken or may not be bound.
pub fn bind(listeners: &Listeners, address: SocketAddr, used_by: SocketUse) -> Result<TcpListener> {
    bind_protocol(listeners, address, used_by, Protocol::TCP)
}

/// The same for TCP or MPTCP. A port that is taken over keeps what it has.
///
/// # Errors
///
/// As [`bind`], or the kernel lacks the protocol.
pub fn bind_protocol(
    listeners: &Listeners,
    address: SocketAddr,
    used_by: SocketUse,
    protocol: Protocol,
) -> Result<TcpListener> {
    listeners
        .tcp(address, used_by, || bind_either_family(address, protocol))
        .with_context(|| format!("listen on {address}"))
}

fn bind_either_family(
    address: SocketAddr,
    protocol: Protocol,
) -> io::Result<std::net::TcpListener> {
    match bind_once(address, protocol) {
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && no_ipv6(&error) => {
            let any = Ipv4Addr::UNSPECIFIED.into();
            bind_once(SocketAddr::new(any, address.port()), protocol)
        }
        bound => bound,
    }
}

fn no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
}

fn bind_once(address: SocketAddr, protocol: Protocol) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A listener of either family.
pub trait Accept {
    /// The accepted sockets.
    type Connection: Send + 'static;

    /// The next connection.
    fn accept_one(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;

    /// Resets a connection that cannot be served, so that its peer sees an error.
    fn reset(connection: Self::Connection);
}

impl Accept for TcpListener {
    type Connection = (TcpStream, SocketAddr);

    async fn accept_one(&self) -> io::Result<Self::Connection> {
        let (connection, peer) = self.accept().await?;
        Ok((connection, canonical(peer)))
    }

    fn reset((connection, _): Self::Connection) {
        // Without it the peer would see an orderly end.
        drop(SockRef::from(&connection).set_linger(Some(Duration::ZERO)));
    }
}

impl Accept for LocalSocket {
    type Connection = UnixStream;

    async fn accept_one(&self) -> io::Result<UnixStream> {
        self.accept().await
    }

    fn reset(connection: UnixStream) {
        drop(connection);
    }
}

/// A spare descriptor for when no other is free: with it a client is accepted and reset at once.
/// Without it the client would hang in the queue until another connection ends.
#[derive(Debug)]
struct Spare(Option<File>);

impl Spare {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Refuses the next client, if there is one. Returns whether there was one.
    fn refuse<L: Accept>(&mut self, listener: &L) -> bool {
        let Some(spare) = self.0.take() else {
            *self = Self::new();
            return false;
        };
        drop(spare);
        // There may be no client: accept takes a descriptor before it looks. Then the spare one is
        // taken back at once, before it serves a client of another listener.
        let refused = match listener.accept_one().now_or_never() {
            Some(Ok(connection)) => {
                L::reset(connection);
                true
            }
            // Another task took the descriptor first.
            Some(Err(_)) | None => false,
        };
        *self = Self::new();
        refused
    }
}

fn out_of_descriptors(error: &io::Error) -> bool {
    [Errno::EMFILE, Errno::ENFILE]
        .iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// Where agents should have their tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentTarget {
    /// This proxy.
    ThisProxy,
    /// The successor, or the other proxies.
    Others,
}

/// When a listener accepts connections.
#[derive(Clone)]
pub struct Accepting {
    drain: Drain,
    agents: Option<watch::Receiver<AgentTarget>>,
}

impl From<Drain> for Accepting {
    /// Until the drain begins.
    fn from(drain: Drain) -> Self {
        let agents = None;
        Self { drain, agents }
    }
}

impl Accepting {
    /// While agents should come here, until the proxy begins to leave.
    pub fn agents(drain: Drain, agents: watch::Receiver<AgentTarget>) -> Self {
        let agents = Some(agents);
        Self { drain, agents }
    }

    async fn over(drain: &Drain, is_for_agents: bool) {
        if is_for_agents {
            drain.leaving().await;
        } else {
            drain.begun().await;
        }
    }

    async fn accept<L: Accept + Sync>(
        agents: &mut Option<watch::Receiver<AgentTarget>>,
        listener: &L,
    ) -> io::Result<L::Connection> {
        let Some(agents) = agents else {
            return listener.accept_one().await;
        };
        loop {
            if agents
                .wait_for(|to| *to == AgentTarget::ThisProxy)
                .await
                .is_err()
            {
                return std::future::pending().await;
            }
            tokio::select! {
                accepted = listener.accept_one() => return accepted,
                _ = agents.changed() => {}
            }
        }
    }
}

/// Serves a listener's connections. `serve_one` starts a task for each among those it is given.
/// At the end of `accepting` no more connections are accepted and open ones may end. Tasks that
/// outlive this one end with their thread. They are not in a `JoinSet`: a task may start its
/// successor, and their ends need not wake this one.
///
/// # Errors
///
/// None today; the type is that of a supervised task.
pub async fn serve<L: Accept + Send + Sync>(
    listener: L,
    name: &'static str,
    accepting: impl Into<Accepting>,
    serve_one: impl Fn(L::Connection, &TaskTracker) + Send,
) -> Result<()> {
    let Accepting { drain, mut agents } = accepting.into();
    let is_for_agents = agents.is_some();
    let connections = TaskTracker::new();
    let mut spare = Spare::new();
    let failures = LogBudget::default();
    loop {
        tokio::select! {
            () = Accepting::over(&drain, is_for_agents) => break,
            accepted = Accepting::accept(&mut agents, &listener) => match accepted {
                Ok(connection) => serve_one(connection, &connections),
                Err(error) => {
                    let refused = out_of_descriptors(&error) && spare.refuse(&listener);
                    if let Some(suppressed) = failures.spend() {
                        tracing::warn!(listener = name, %error, refused, suppressed, "accept");
                    }
                    if !refused {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// An IPv4 address in its own family: a dual-stack socket shows it as `::ffff:a.b.c.d`.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
