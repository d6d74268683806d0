//! Dialling out to a proxy: directly, or through the forward proxy that the environment names
//! (`HTTPS_PROXY`, `NO_PROXY`).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use culvert_api::{Host, HostPort};
use culvert_daemon::{
    ConnectFailure, ForwardProxies, ForwardProxy, InvalidForwardProxy, connect_through,
};
use culvert_tunnel::Congestion;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

/// Minimum time for each of several addresses.
const MIN_ADDRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit of addresses that are tried in one attempt.
const MAX_ADDRESSES: usize = 16;

/// How the agent reaches proxies: directly or through the forward proxy.
#[derive(Debug)]
pub(crate) struct Outbound {
    forward: ForwardProxies,
    /// Which of a name's addresses is tried first. It is random for each run, so that the agents of
    /// a site spread over the proxies behind one name.
    first: usize,
    congestion: Congestion,
    /// The largest TCP segment in bytes; what the route allows if none is named.
    segments: Option<u16>,
    /// TCP or MPTCP.
    protocol: Protocol,
}

/// Why a TCP connection could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutboundError {
    #[error("look up {host}")]
    Resolve { host: String, source: io::Error },
    #[error("look up {0}: the name has no addresses")]
    NoAddress(String),
    #[error("connect to {address}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("{step}: no answer in time")]
    TimedOut { step: String },
    #[error("HTTPS_PROXY {forward} did not connect to {proxy}")]
    ForwardProxy {
        forward: HostPort,
        proxy: HostPort,
        source: ConnectFailure,
    },
}

impl Outbound {
    /// Reads the settings; `variable` looks up an environment variable.
    ///
    /// # Errors
    /// The forward proxy cannot be used. The agent never bypasses it: operators would not expect
    /// that.
    pub(crate) fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidForwardProxy> {
        Ok(Self {
            forward: ForwardProxies::from_environment(variable)?,
            first: rand::random_range(0..MAX_ADDRESSES),
            congestion: Congestion::System,
            segments: None,
            protocol: Protocol::TCP,
        })
    }

    /// With that TCP congestion control in place of the system's.
    #[must_use]
    pub(crate) fn with_congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = congestion;
        self
    }

    /// With TCP segments of at most so many bytes; what the route allows if none is named.
    #[must_use]
    pub(crate) fn with_segments(mut self, bytes: Option<u16>) -> Self {
        self.segments = bytes;
        self
    }

    /// With MPTCP, which the kernel must have, in place of TCP.
    #[must_use]
    pub(crate) fn with_mptcp(mut self) -> Self {
        self.protocol = Protocol::MPTCP;
        self
    }

    /// Starts `turn` addresses later, so that the tunnels to one name go to different proxies
    /// behind it.
    pub(crate) fn for_tunnel(&self, turn: usize) -> Self {
        Self {
            forward: self.forward.clone(),
            first: self.first.wrapping_add(turn),
            congestion: self.congestion.clone(),
            segments: self.segments,
            protocol: self.protocol,
        }
    }

    /// The forward proxy on the way to `proxy`, for messages.
    pub(crate) fn via(&self, proxy: &HostPort) -> Option<HostPort> {
        let forward = self.forward.to(proxy)?;
        Some(forward.address.clone())
    }

    /// Opens a TCP connection to `proxy`. Resolves its name each time, and tries all its addresses.
    pub(crate) async fn dial(
        &self,
        proxy: &HostPort,
        deadline: Instant,
    ) -> Result<TcpStream, OutboundError> {
        let direct = Direct {
            first: self.first,
            segments: self.segments,
            protocol: self.protocol,
            deadline,
        };
        let stream = match self.forward.to(proxy) {
            None => direct.dial(proxy).await,
            Some(forward) => dial_through(forward, proxy, direct).await,
        }?;
        self.congestion.set(&stream);
        Ok(stream)
    }
}

async fn dial_through(
    forward: &ForwardProxy,
    proxy: &HostPort,
    direct: Direct,
) -> Result<TcpStream, OutboundError> {
    let mut stream = direct.dial(&forward.address).await?;
    let connected = connect_through(&mut stream, forward, proxy);
    match timeout_at(direct.deadline, connected).await {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(source)) => Err(OutboundError::ForwardProxy {
            forward: forward.address.clone(),
            proxy: proxy.clone(),
            source,
        }),
        Err(_) => Err(OutboundError::TimedOut {
            step: format!("CONNECT {proxy} through HTTPS_PROXY {}", forward.address),
        }),
    }
}

/// Dials a proxy, or the forward proxy on the way to it.
#[derive(Clone, Copy)]
struct Direct {
    first: usize,
    segments: Option<u16>,
    protocol: Protocol,
    deadline: Instant,
}

impl Direct {
    async fn dial(self, to: &HostPort) -> Result<TcpStream, OutboundError> {
        let host = match &to.host {
            Host::Address(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        };
        let addresses = self.resolve(&host, to.port).await?;
        let mut last = OutboundError::NoAddress(host);
        for (tried, &address) in addresses.iter().enumerate() {
            let part = share(self.deadline - Instant::now(), addresses.len() - tried);
            let deadline = self.deadline.min(Instant::now() + part);
            last = match timeout_at(deadline, self.connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(source)) => OutboundError::Connect { address, source },
                Err(_) => OutboundError::TimedOut {
                    step: format!("connect to {address}"),
                },
            };
        }
        Err(last)
    }

    /// The addresses of a host, in the order in which they are tried.
    async fn resolve(self, host: &str, port: u16) -> Result<Vec<SocketAddr>, OutboundError> {
        match timeout_at(self.deadline, lookup_host((host, port))).await {
            Ok(Ok(addresses)) => Ok(in_turn(addresses.collect(), self.first)),
            Ok(Err(source)) => Err(OutboundError::Resolve {
                host: host.to_owned(),
                source,
            }),
            Err(_) => Err(OutboundError::TimedOut {
                step: format!("look up {host}"),
            }),
        }
    }

    async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(self.protocol),
        )?;
        socket.set_nonblocking(true)?;
        if let Some(bytes) = self.segments {
            culvert_tunnel::limit_segments(&socket, bytes);
        }
        let stream = TcpSocket::from_std_stream(socket.into())
            .connect(address)
            .await?;
        culvert_tunnel::tune(&stream)?;
        Ok(stream)
    }
}

/// The same proxies, shuffled: if all agents asked the first one of a list, it alone would sign all
/// certificates.
pub(crate) fn in_any_order(mut proxies: Vec<HostPort>) -> Vec<HostPort> {
    proxies.sort_by_cached_key(|_| rand::random::<u32>());
    proxies
}

/// The time limit for the next of `addresses`. An address that drops packets must leave time for
/// the others.
fn share(left: Duration, addresses: usize) -> Duration {
    (left / u32::try_from(addresses).unwrap_or(u32::MAX).max(1)).max(MIN_ADDRESS_TIMEOUT)
}

/// The order in which addresses are tried: the resolver's preferred family first, and in each
/// family the address at `first` first. They are sorted because resolvers shuffle them: otherwise
/// two tunnels to one name would often meet at the same proxy.
fn in_turn(mut addresses: Vec<SocketAddr>, first: usize) -> Vec<SocketAddr> {
    let preferred = addresses.first().map(SocketAddr::is_ipv4);
    addresses.sort_unstable();
    addresses.dedup();
    let mut these = Vec::new();
    let mut those = Vec::new();
    for address in addresses {
        if Some(address.is_ipv4()) == preferred {
            these.push(address);
        } else {
            those.push(address);
        }
    }
    for family in [&mut these, &mut those] {
        let turn = first % family.len().max(1);
        family.rotate_left(turn);
    }
    these.extend(those);
    these.truncate(MAX_ADDRESSES);
    these
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn outbound(variables: &[(&str, &str)]) -> Result<Outbound, InvalidForwardProxy> {
        let value = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Outbound::from_environment(value)
    }

    fn via(variables: &[(&str, &str)], proxy: &str) -> Option<String> {
        let via = outbound(variables).unwrap().via(&proxy.parse().unwrap())?;
        Some(via.to_string())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn the_environment_decides_upper_case_first_and_exceptions_count() {
        let corporate = ("https_proxy", "http://user:secret@gate.corp:3128");
        assert_eq!(via(&[], "proxy.example:7400"), None);
        assert_eq!(
            via(&[corporate], "proxy.example:7400").as_deref(),
            Some("gate.corp:3128")
        );
        assert_eq!(
            via(&[corporate, ("HTTPS_PROXY", "other:80")], "10.0.0.1:1").as_deref(),
            Some("other:80")
        );
        assert_eq!(
            via(&[corporate, ("NO_PROXY", "example")], "proxy.example:7400"),
            None
        );
        assert_eq!(
            via(
                &[corporate, ("no_proxy", "10.0.0.0/8,2001:db8::/32")],
                "[2001:db8::1]:7400"
            ),
            None
        );
        assert_eq!(via(&[("HTTPS_PROXY", "")], "proxy.example:7400"), None);
    }

    #[test]
    fn a_forward_proxy_that_cannot_be_used_is_an_error_not_a_direct_dial() {
        for bad in [
            "https://gate:443",
            "socks5://gate:1080",
            "http://",
            "not a url",
        ] {
            assert!(outbound(&[("HTTPS_PROXY", bad)]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_address_gets_its_share_of_the_time() {
        assert_eq!(
            share(Duration::from_secs(10), 4),
            Duration::from_millis(2500)
        );
        assert_eq!(share(Duration::from_secs(2), 16), MIN_ADDRESS_TIMEOUT);
    }

    #[test]
    fn tunnels_to_one_name_begin_at_different_addresses_however_the_resolver_shuffles() {
        let order = |texts: &[&str], first| {
            let addresses = texts
                .iter()
                .map(|text| format!("{text}:7400").parse().unwrap())
                .collect();
            in_turn(addresses, first)
                .iter()
                .map(|address| address.ip().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            order(&["10.0.0.2", "10.0.0.1", "10.0.0.3"], 0),
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        );
        assert_eq!(
            order(&["10.0.0.3", "10.0.0.2", "10.0.0.1"], 1),
            ["10.0.0.2", "10.0.0.3", "10.0.0.1"]
        );
        assert_eq!(
            order(&["10.0.0.1", "10.0.0.2"], 5),
            ["10.0.0.2", "10.0.0.1"]
        );
        assert_eq!(
            order(&["[fd00::1]", "10.0.0.1", "[fd00::2]"], 1),
            ["fd00::2", "fd00::1", "10.0.0.1"]
        );
        assert!(order(&[], 3).is_empty());
        let outbound = outbound(&[]).unwrap();
        assert_ne!(outbound.for_tunnel(0).first, outbound.for_tunnel(1).first);
    }

    #[tokio::test]
    async fn a_refused_connection_names_its_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = outbound(&[])
            .unwrap()
            .dial(&address.to_string().parse().unwrap(), soon())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), format!("connect to {address}"));
    }

    /// A forward proxy for one connection: sends `answer`, then echoes. Returns the head of the
    /// request.
    async fn forward_proxy(listener: TcpListener, answer: &'static str) -> String {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        let mut byte = [0];
        if stream.read_exact(&mut byte).await.is_ok() {
            stream.write_all(&byte).await.unwrap();
        }
        String::from_utf8(head).unwrap()
    }

    #[tokio::test]
    async fn a_forward_proxy_is_asked_with_its_credentials_and_then_carries_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let setting = format!(
            "http://aladdin:opensesame@{}",
            listener.local_addr().unwrap()
        );
        let outbound = outbound(&[("HTTPS_PROXY", &setting)]).unwrap();
        let proxy: HostPort = "proxy.invalid:7400".parse().unwrap();
        let client = async {
            let mut stream = outbound.dial(&proxy, soon()).await.unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.read_u8().await.unwrap()
        };
        let (head, echoed) =
            tokio::join!(forward_proxy(listener, "HTTP/1.1 200 OK\r\n\r\n"), client);
        assert_eq!(echoed, b'x');
        assert!(
            head.starts_with("CONNECT proxy.invalid:7400 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(
            head.contains("Basic YWxhZGRpbjpvcGVuc2VzYW1l\r\n"),
            "{head}"
        );
    }

    #[tokio::test]
    async fn a_refusing_forward_proxy_is_named_without_its_password() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let outbound = outbound(&[("HTTPS_PROXY", &format!("http://u:secret@{address}"))]).unwrap();
        let proxy = "proxy.invalid:7400".parse().unwrap();
        let (_, dialled) = tokio::join!(
            forward_proxy(listener, "HTTP/1.1 403 Forbidden\r\n\r\n"),
            async { outbound.dial(&proxy, soon()).await.map(drop) }
        );
        let text = dialled.unwrap_err().to_string();
        assert!(
            text.contains(&address.to_string()) && text.contains("proxy.invalid:7400"),
            "{text}"
        );
        assert!(!text.contains("secret"), "{text}");
    }
}
