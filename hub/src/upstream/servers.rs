//! The API servers, and the way to one of them: all servers and all addresses of a name are tried
//! as browsers do (RFC 8305), so that one that is silent costs a moment and not the link.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use culvert_api::{Host, HostPort};
use culvert_daemon::{ForwardProxies, ForwardProxy, connect_through};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Uri;
use http::uri::Authority;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use crate::server_order::ServerOrder;

/// For the name, and for TCP to one address. A satellite link needs some 0.6 s a round trip.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two addresses of one name (RFC 8305, section 5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);
/// Between two servers: as long as TCP and TLS take on a slow link.
const NEXT_SERVER: Duration = Duration::from_secs(1);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 16;
/// A forward proxy looks up and dials before it answers.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);
/// The port of an https address that names none.
const HTTPS_PORT: u16 = 443;

/// All API servers of the cluster.
#[derive(Debug)]
pub(crate) struct Servers {
    configured: Vec<Arc<Server>>,
    /// Servers of the cluster's own list: tried when no configured one answers.
    learned: Mutex<Vec<Arc<Server>>>,
    order: ServerOrder,
    next: AtomicUsize,
}

/// One API server, or several behind one name.
#[derive(Debug)]
pub(crate) struct Server {
    /// Host and port, as requests name it.
    pub(crate) authority: Authority,
    pub(crate) name: ServerName<'static>,
    /// What is dialled: the server, or the forward proxy on the way to it.
    dialled: HostPort,
    forward: Option<Forward>,
    /// The address that worked last.
    worked: Mutex<Option<SocketAddr>>,
    /// Another one is asked first, until this one answers again.
    failed: AtomicBool,
}

/// The forward proxy on the way to a server.
#[derive(Debug)]
struct Forward {
    proxy: Arc<ForwardProxy>,
    target: HostPort,
}

fn is_this_host(host: &Host) -> bool {
    match host {
        Host::Address(ip) => ip.is_loopback(),
        Host::Name(name) => name == "localhost",
    }
}

impl Servers {
    /// # Errors
    /// An address without a host, or with one that no certificate can name.
    pub(crate) fn new(
        addresses: &[Uri],
        order: ServerOrder,
        forward: &ForwardProxies,
    ) -> io::Result<Self> {
        let mut all = Vec::new();
        for address in addresses {
            all.push(Arc::new(Server::new(address, forward)?));
        }
        Ok(Self {
            configured: all,
            learned: Mutex::default(),
            order,
            next: AtomicUsize::new(0),
        })
    }

    /// The servers as they are to be tried: those that failed come last, and then learned ones.
    pub(crate) fn in_order(&self) -> Vec<Arc<Server>> {
        let first = match self.order {
            ServerOrder::Priority => 0,
            ServerOrder::RoundRobin => self.next.fetch_add(1, Ordering::Relaxed),
        };
        let mut servers = Vec::new();
        for index in 0..self.configured.len() {
            let index = (first + index) % self.configured.len();
            servers.push(self.configured[index].clone());
        }
        servers.sort_by_key(|server| server.is_failed());
        servers.extend(self.learned());
        servers
    }

    /// The servers of the configuration, in its order.
    pub(crate) fn configured(&self) -> &[Arc<Server>] {
        &self.configured
    }

    /// Further servers that the cluster names.
    pub(crate) fn learned(&self) -> Vec<Arc<Server>> {
        self.learned.lock().clone()
    }

    /// Takes the addresses of the cluster's own list. They have the certificate of the first configured
    /// server, for its name.
    pub(crate) fn learn(&self, addresses: &[SocketAddr]) {
        let Some(first) = self.configured.first() else {
            return;
        };
        let mut learned = Vec::new();
        for address in addresses.iter().take(MAX_ADDRESSES) {
            learned.extend(Server::learned(*address, first.name.clone()).map(Arc::new));
        }
        *self.learned.lock() = learned;
    }

    /// The server at this place failed: others are tried first. Returns whether there are others.
    pub(crate) fn failed(&self, authority: &Authority) -> bool {
        let learned = self.learned();
        for server in self.configured.iter().chain(&learned) {
            if server.authority == *authority {
                server.record_failure();
            }
        }
        self.configured.len() + learned.len() > 1
    }
}

impl Server {
    fn new(address: &Uri, forward: &ForwardProxies) -> io::Result<Self> {
        let authority = address.authority().ok_or(io::ErrorKind::InvalidInput)?;
        let name = authority.host();
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let target = HostPort {
            host: name.parse().map_err(io::Error::other)?,
            port: authority.port_u16().unwrap_or(HTTPS_PORT),
        };
        // As kubelet has it: a load balancer of the node's own is not behind the forward proxy.
        let forward = forward.to(&target).filter(|_| !is_this_host(&target.host));
        Ok(Self {
            authority: authority.clone(),
            name: ServerName::try_from(name.to_owned()).map_err(io::Error::other)?,
            dialled: forward.map_or_else(|| target.clone(), |it| it.address.clone()),
            forward: forward.map(|proxy| Forward {
                proxy: proxy.clone(),
                target,
            }),
            worked: Mutex::new(None),
            failed: AtomicBool::new(false),
        })
    }

    /// `None`: no address of an API server, such as one with a zone.
    fn learned(address: SocketAddr, name: ServerName<'static>) -> Option<Self> {
        let host = Host::Address(address.ip());
        Some(Self {
            authority: address.to_string().parse().ok()?,
            name,
            dialled: HostPort {
                host,
                port: address.port(),
            },
            forward: None,
            worked: Mutex::new(None),
            failed: AtomicBool::new(false),
        })
    }

    /// Asks the forward proxy at the other end of a connection, if there is one, for the server.
    pub(crate) async fn go_through(&self, tcp: &mut TcpStream) -> io::Result<()> {
        let Some(Forward { proxy, target }) = &self.forward else {
            return Ok(());
        };
        let (kind, failure) =
            match timeout(FORWARD_TIMEOUT, connect_through(tcp, proxy, target)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => (io::ErrorKind::Other, failure.to_string()),
                Err(_) => (io::ErrorKind::TimedOut, "no answer in time".to_owned()),
            };
        let address = &proxy.address;
        let error = format!("HTTPS_PROXY {address} did not connect to {target}: {failure}");
        Err(io::Error::new(kind, error))
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn record_failure(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn record_answer(&self) {
        self.failed.store(false, Ordering::Relaxed);
    }

    /// Its addresses, the one that worked last first.
    pub(crate) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let host = match &self.dialled.host {
            Host::Address(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        };
        let found = lookup_host((host.as_str(), self.dialled.port));
        let found = timeout(TCP_TIMEOUT, found).await.map_err(|_| {
            let error = "the name of the API server was not resolved within 3 s";
            io::Error::new(io::ErrorKind::TimedOut, error)
        })??;
        let worked = *self.worked.lock();
        let mut addresses = in_turns(found.collect(), worked);
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }

    /// A connection to the first of these addresses that answers.
    pub(crate) async fn connect(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        let mut attempts = Vec::new();
        for address in addresses {
            attempts.push(dial(*address));
        }
        first_of(attempts, NEXT_ADDRESS).await
    }

    pub(crate) fn worked(&self, address: SocketAddr) {
        *self.worked.lock() = Some(address);
    }
}

/// The first success of attempts with several servers.
pub(crate) async fn first_server<F, T>(attempts: impl IntoIterator<Item = F>) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    first_of(attempts, NEXT_SERVER).await
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let connected = timeout(TCP_TIMEOUT, TcpStream::connect(address)).await;
    connected.map_err(|_| {
        let error = format!("no TCP connection with {address} within 3 s");
        io::Error::new(io::ErrorKind::TimedOut, error)
    })?
}

/// IPv6 and IPv4 in turns, beginning with the family that the resolver prefers; `worked` first.
fn in_turns(addresses: Vec<SocketAddr>, worked: Option<SocketAddr>) -> Vec<SocketAddr> {
    let Some(first) = addresses.first() else {
        return addresses;
    };
    let is_ipv6 = first.is_ipv6();
    let (preferred, others): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == is_ipv6);
    let mut in_turns = Vec::new();
    for index in 0..preferred.len().max(others.len()) {
        in_turns.extend(preferred.get(index));
        in_turns.extend(others.get(index));
    }
    in_turns.sort_by_key(|address| Some(*address) != worked);
    in_turns
}

/// Starts attempts one after the other: the next one when one failed, or after `pause`. The first
/// that succeeds ends all others.
async fn first_of<F, T>(attempts: impl IntoIterator<Item = F>, pause: Duration) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut waiting = attempts.into_iter().peekable();
    let mut running = FuturesUnordered::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        running.extend(waiting.next());
        if running.is_empty() {
            return Err(last);
        }
        let mut next = pin!(sleep(pause));
        loop {
            tokio::select! {
                Some(ended) = running.next() => match ended {
                    Ok(success) => return Ok(success),
                    Err(error) => {
                        last = error;
                        if waiting.peek().is_some() || running.is_empty() {
                            break;
                        }
                    }
                },
                () = &mut next, if waiting.peek().is_some() => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_are_tried_in_turns_and_what_worked_last_first() {
        let found = addresses(&["[::1]:1", "[::2]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let in_turn = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1"]);
        assert_eq!(in_turns(found.clone(), None), in_turn);
        let worked = "2.2.2.2:1".parse().unwrap();
        let first = addresses(&["2.2.2.2:1", "[::1]:1", "1.1.1.1:1", "[::2]:1"]);
        assert_eq!(in_turns(found, Some(worked)), first);
    }

    /// What becomes of an attempt.
    #[derive(Clone, Copy)]
    enum Attempt {
        Silent,
        Fails,
        Succeeds(u8),
    }

    async fn result_of(attempts: &[Attempt]) -> Option<u8> {
        let attempts = attempts.iter().map(|attempt| async move {
            match attempt {
                Attempt::Silent => pending().await,
                Attempt::Fails => Err(io::ErrorKind::ConnectionRefused.into()),
                Attempt::Succeeds(number) => ready(Ok(*number)).await,
            }
        });
        first_of(attempts, Duration::from_millis(1)).await.ok()
    }

    #[tokio::test]
    async fn an_address_that_is_silent_or_refuses_is_passed_over() {
        use Attempt::{Fails, Silent, Succeeds};
        assert_eq!(result_of(&[Succeeds(1), Succeeds(2)]).await, Some(1));
        assert_eq!(result_of(&[Silent, Succeeds(2)]).await, Some(2));
        assert_eq!(
            result_of(&[Fails, Silent, Fails, Succeeds(4)]).await,
            Some(4)
        );
        assert_eq!(result_of(&[Fails, Fails]).await, None);
        assert_eq!(result_of(&[]).await, None);
    }

    fn servers_of(uris: &[Uri], order: ServerOrder) -> Servers {
        Servers::new(uris, order, &ForwardProxies::default()).unwrap()
    }

    #[test]
    fn a_forward_proxy_is_dialled_but_not_for_exceptions_and_this_host() {
        let environment = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://gate:3128".to_owned()),
            "NO_PROXY" => Some(".near".to_owned()),
            _ => None,
        };
        let forward = ForwardProxies::from_environment(environment).unwrap();
        let dialled = |address: &'static str| {
            let server = Server::new(&Uri::from_static(address), &forward).unwrap();
            server.dialled.to_string()
        };
        assert_eq!(dialled("https://api.far"), "gate:3128");
        assert_eq!(dialled("https://[2001:db8::1]:6443"), "gate:3128");
        assert_eq!(dialled("https://api.near:6443"), "api.near:6443");
        assert_eq!(dialled("https://127.0.0.1:6443"), "127.0.0.1:6443");
        assert_eq!(dialled("https://[::1]:6443"), "[::1]:6443");
        assert_eq!(dialled("https://localhost"), "localhost:443");
    }

    #[test]
    fn a_server_that_failed_is_tried_last_until_it_answers_again() {
        let uris = ["https://a", "https://b", "https://c"].map(Uri::from_static);
        let servers = servers_of(&uris, ServerOrder::Priority);
        let hosts = |servers: &Servers| -> String {
            servers
                .in_order()
                .iter()
                .map(|it| it.authority.host())
                .collect()
        };
        assert_eq!(hosts(&servers), "abc");
        assert!(servers.failed(&Authority::from_static("a")));
        assert_eq!(hosts(&servers), "bca");
        servers.configured()[0].record_answer();
        assert_eq!(hosts(&servers), "abc");
        servers.learn(&addresses(&["10.0.0.1:6443"]));
        assert_eq!(hosts(&servers), "abc10.0.0.1", "the last way");
        let turns = servers_of(&uris, ServerOrder::RoundRobin);
        assert_eq!([hosts(&turns), hosts(&turns)], ["abc", "bca"]);
    }
}
