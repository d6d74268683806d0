//! Dials backends for a tunnel's streams, within the allow-list, and writes the access log.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::{Candidates, NodeName};
use culvert_daemon::{chain, interface_addresses};
use culvert_tunnel::proto::tunnel::{DescribeResponse, DialCode, Open};
use culvert_tunnel::{
    Backend, Backends, DIAL_TIMEOUT, DialFailure, StreamEnd, StreamError, dial_code, dial_reason,
    tune_relayed,
};
use nix::net::if_::InterfaceFlags;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::backends::allow_list::{CurrentRules, DialRules, OwnAddresses};
use crate::metrics::{Active, FINISHED, Metrics};

/// Interfaces that hold addresses of services, whatever their kind.
const SERVICE_INTERFACES: [&str; 3] = ["kube-ipvs0", "kube-dummy-if", "nodelocaldns"];
/// How long the list of the host's addresses is reused. With many addresses, reading the list costs
/// as much as a dial.
const OWN_ADDRESSES_AGE: Duration = Duration::from_secs(1);

/// The backends of one tunnel.
#[derive(Debug)]
pub(crate) struct NodeBackends {
    node: NodeName,
    allow: CurrentRules,
    metrics: Arc<Metrics>,
    dialled: Mutex<Vec<Dialled>>,
    own: Mutex<Option<(Instant, Arc<OwnAddresses>)>>,
}

/// A stream whose backend is known.
#[derive(Debug)]
struct Dialled {
    stream: u64,
    backend: SocketAddr,
    _active: Active,
}

impl NodeBackends {
    pub(crate) fn new(node: NodeName, allow: CurrentRules, metrics: Arc<Metrics>) -> Self {
        Self {
            node,
            allow,
            metrics,
            dialled: Mutex::default(),
            own: Mutex::default(),
        }
    }

    async fn dial_allowed(&self, open: &Open) -> Result<Backend, DialFailure> {
        let own = self.own_addresses().map_err(|error| DialFailure {
            code: DialCode::Failed,
            message: format!("the agent cannot read its own addresses: {error}"),
        })?;
        let candidates = self.allow.borrow().decide(open, &own)?;
        let Connected {
            backend,
            socket,
            tried,
        } = dial(&candidates).await?;
        let dialled = Dialled {
            stream: open.stream,
            backend,
            _active: self.metrics.stream(),
        };
        self.dialled.lock().push(dialled);
        Ok(Backend::Socket(socket, tried))
    }

    fn own_addresses(&self) -> io::Result<Arc<OwnAddresses>> {
        let mut own = self.own.lock();
        if let Some((read, addresses)) = &*own
            && read.elapsed() < OWN_ADDRESSES_AGE
        {
            return Ok(addresses.clone());
        }
        let addresses = Arc::new(own_addresses(&self.allow.borrow())?);
        *own = Some((Instant::now(), addresses.clone()));
        Ok(addresses)
    }

    fn remove_dialled(&self, stream: u64) -> Option<Dialled> {
        let mut dialled = self.dialled.lock();
        let at = dialled
            .iter()
            .position(|dialled| dialled.stream == stream)?;
        Some(dialled.swap_remove(at))
    }
}

impl Backends for NodeBackends {
    async fn dial(&self, open: &Open) -> Result<Backend, DialFailure> {
        let result = self.dial_allowed(open).await;
        let code = match &result {
            Ok(_) => DialCode::Ok,
            Err(failure) => failure.code,
        };
        self.metrics.record_dial(code);
        result
    }

    fn describe(&self, known: &DescribeResponse) -> DescribeResponse {
        let own = self.own_addresses().unwrap_or_default();
        DescribeResponse {
            addresses: own.0.iter().map(ToString::to_string).collect(),
            allowed: self.allow.borrow().reported(),
            ..known.clone()
        }
    }

    fn stream_ended(&self, open: &Open, end: &StreamEnd) {
        let dialled = self.remove_dialled(open.stream);
        let outcome = outcome(end);
        self.metrics.record_stream_end(outcome);
        let reason = end.result.as_ref().err().map(|error| chain(error));
        tracing::info!(
            node = %self.node,
            stream = open.stream,
            original_dst = open.original_dst,
            backend.addr = dialled.map(|dialled| tracing::field::display(dialled.backend)),
            bytes_to_backend = end.out_of_tunnel,
            bytes_to_client = end.into_tunnel,
            duration_s = end.duration.as_secs_f64(),
            outcome,
            reason,
            "stream ended"
        );
    }
}

fn outcome(end: &StreamEnd) -> &'static str {
    match &end.result {
        Ok(()) => FINISHED,
        Err(StreamError::Dial(failure)) => dial_reason(failure.code),
        Err(StreamError::Relay(error)) => error.reason(),
    }
}

/// The node's own addresses: those that the operator named, or else those of the interfaces at this
/// moment, because they change while the agent runs.
pub(crate) fn own_addresses(allow: &DialRules) -> io::Result<OwnAddresses> {
    if !allow.node_addresses.is_empty() {
        return Ok(OwnAddresses(allow.node_addresses.clone()));
    }
    let mut own = BTreeSet::new();
    for address in interface_addresses()? {
        if !holds_services(&address.interface, address.flags) {
            own.insert(address.ip);
        }
    }
    Ok(OwnAddresses(own))
}

/// Whether an interface holds only addresses of services, which belong to pods anywhere and not to
/// this node. kube-proxy in IPVS mode, kube-router and NodeLocal DNSCache have one. It is of kind
/// `dummy`, the only kind with broadcast and without ARP.
fn holds_services(name: &str, flags: InterfaceFlags) -> bool {
    let is_dummy = flags.contains(InterfaceFlags::IFF_BROADCAST | InterfaceFlags::IFF_NOARP)
        && !flags.intersects(InterfaceFlags::IFF_POINTOPOINT | InterfaceFlags::IFF_LOOPBACK);
    is_dummy || SERVICE_INTERFACES.contains(&name)
}

/// A backend that accepted a connection.
struct Connected {
    backend: SocketAddr,
    socket: TcpStream,
    /// What failed before, for people.
    tried: String,
}

/// Dials the candidates in turn, all within [`DIAL_TIMEOUT`]. The failure of the first one counts,
/// since it is what the client asked for; the message has all.
async fn dial(candidates: &Candidates) -> Result<Connected, DialFailure> {
    let deadline = Instant::now() + DIAL_TIMEOUT;
    let all = std::iter::once(&candidates.first).chain(&candidates.then);
    let mut left = all.clone().count().try_into().unwrap_or(u32::MAX);
    let mut failed: Option<DialFailure> = None;
    for &backend in all {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let time = remaining / left;
        left -= 1;
        let failure = match timeout(time, connect(backend)).await {
            Ok(Ok(socket)) => {
                return Ok(Connected {
                    backend,
                    socket,
                    tried: failed.map(|failed| failed.message).unwrap_or_default(),
                });
            }
            Ok(Err(failure)) => failure,
            Err(_) => timed_out(backend, time),
        };
        match &mut failed {
            Some(failed) => failed.message += &format!("; {}", failure.message),
            None => failed = Some(failure),
        }
    }
    Err(failed.unwrap_or_else(|| timed_out(candidates.first, DIAL_TIMEOUT)))
}

async fn connect(backend: SocketAddr) -> Result<TcpStream, DialFailure> {
    connect_tuned(backend).await.map_err(|error| DialFailure {
        code: dial_code(&error),
        message: format!("{backend}: {error}"),
    })
}

async fn connect_tuned(backend: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(backend).await?;
    tune_relayed(&socket)?;
    Ok(socket)
}

fn timed_out(backend: SocketAddr, after: Duration) -> DialFailure {
    DialFailure {
        code: DialCode::TimedOut,
        message: format!("{backend}: no answer within {:.1} s", after.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::net::TcpListener;

    use super::*;

    fn backends(port: u16) -> NodeBackends {
        let allow = DialRules::for_port(port).fixed();
        NodeBackends::new("edge-1".parse().unwrap(), allow, Arc::default())
    }

    fn open(address: &str, port: u16) -> Open {
        Open {
            address: address.to_owned(),
            port: port.into(),
            ..Open::default()
        }
    }

    async fn socket(backends: &NodeBackends, open: &Open) -> TcpStream {
        match backends.dial(open).await.unwrap() {
            Backend::Socket(socket, _) => socket,
            Backend::Agent(_) => panic!("an agent has no tunnel to another"),
        }
    }

    #[tokio::test]
    async fn loopback_is_tried_in_both_families() {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = socket(&backends(port), &open("", port)).await;
        assert_eq!(socket.peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[tokio::test]
    async fn a_client_of_the_node_gets_its_other_family_and_the_proxy_hears_what_was_tried() {
        let listener = TcpListener::bind("[::1]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let backends = backends(port);
        let node = Open {
            instead: vec!["::1".to_owned()],
            ..open("127.0.0.1", port)
        };
        let Backend::Socket(socket, tried) = backends.dial(&node).await.unwrap() else {
            panic!("an agent has no tunnel to another");
        };
        assert_eq!(socket.peer_addr().unwrap(), listener.local_addr().unwrap());
        assert!(tried.contains(&format!("127.0.0.1:{port}")), "{tried}");
        let failure = backends.dial(&open("127.0.0.1", port)).await.unwrap_err();
        assert_eq!(
            failure.code,
            DialCode::Refused,
            "an address is that address alone"
        );
    }

    #[tokio::test]
    async fn the_failure_of_the_first_address_counts_and_all_are_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let node = Open {
            instead: vec!["::1".to_owned()],
            ..open("127.0.0.1", port)
        };
        let failure = backends(port).dial(&node).await.unwrap_err();
        assert_eq!(failure.code, DialCode::Refused);
        for tried in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
            assert!(failure.message.contains(&tried), "{}", failure.message);
        }
    }

    #[tokio::test]
    async fn a_backend_that_vanishes_from_an_idle_stream_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = socket(&backends(port), &open("127.0.0.1", port)).await;
        let socket = socket2::SockRef::from(&socket);
        assert!(socket.keepalive().unwrap());
        let probes =
            socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(
            socket.tcp_keepalive_time().unwrap() + probes,
            Duration::from_secs(60)
        );
    }

    #[tokio::test]
    async fn a_closed_port_is_refused_and_a_foreign_address_forbidden() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let backends = backends(port);
        assert_eq!(
            backends
                .dial(&open("127.0.0.1", port))
                .await
                .unwrap_err()
                .code,
            DialCode::Refused
        );
        assert_eq!(
            backends
                .dial(&open("192.0.2.1", port))
                .await
                .unwrap_err()
                .code,
            DialCode::Forbidden
        );
    }

    #[test]
    fn loopback_is_among_the_interface_addresses() {
        assert!(
            own_addresses(&DialRules::default())
                .unwrap()
                .0
                .contains(&IpAddr::from([127, 0, 0, 1]))
        );
    }

    #[test]
    fn addresses_that_the_operator_named_are_the_only_own_ones() {
        let named = IpAddr::from([10, 0, 3, 7]);
        let allow = DialRules {
            node_addresses: [named].into(),
            ..DialRules::default()
        };
        assert_eq!(own_addresses(&allow).unwrap().0, [named].into());
    }

    #[test]
    fn interfaces_that_hold_services_are_told_from_those_that_hold_the_node() {
        type F = InterfaceFlags;
        let up = F::IFF_UP | F::IFF_RUNNING;
        let ethernet = up | F::IFF_BROADCAST | F::IFF_MULTICAST;
        for (name, flags, expected) in [
            ("kube-ipvs0", F::IFF_BROADCAST | F::IFF_NOARP, true),
            ("kube-ipvs0", ethernet, true),
            ("nodelocaldns", F::IFF_BROADCAST | F::IFF_NOARP, true),
            ("dummy0", up | F::IFF_BROADCAST | F::IFF_NOARP, true),
            ("eth0", ethernet, false),
            ("bond0.7", ethernet, false),
            ("wg0", up | F::IFF_POINTOPOINT | F::IFF_NOARP, false),
            (
                "wwan0",
                up | F::IFF_POINTOPOINT | F::IFF_MULTICAST | F::IFF_NOARP,
                false,
            ),
            ("tunl0", up | F::IFF_NOARP, false),
            ("lo", up | F::IFF_LOOPBACK, false),
        ] {
            assert_eq!(holds_services(name, flags), expected, "{name} {flags:?}");
        }
    }
}
