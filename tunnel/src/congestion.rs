//! The TCP congestion control of tunnels.

use std::convert::Infallible;
use std::str::FromStr;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;

use crate::tcp;

/// What [`Congestion::Auto`] gives a far tunnel. It does not take lost packets for a full link, and
/// keeps its speed over pauses.
const FAR: &str = "bbr";
/// A tunnel with this round trip is far. Nearer ones lose little by any control, and bbr is slow on
/// a machine without processor time to spare.
const FAR_AFTER: Duration = Duration::from_millis(10);

/// Which congestion control tunnels get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// Bbr on far links if the kernel has it, the system's elsewhere.
    Auto,
    /// The system's.
    System,
    /// The one of this name.
    Named(Box<str>),
}

impl FromStr for Congestion {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Auto,
            "system" => Self::System,
            name => Self::Named(name.into()),
        })
    }
}

impl Congestion {
    /// The same, or the system's if the kernel refuses the one that was named. That is logged.
    #[must_use]
    pub fn or_system(self) -> Self {
        if let Self::Named(name) = &self
            && let Err(error) = has(name)
        {
            tracing::warn!(%name, %error, "the kernel refuses this TCP congestion control for tunnels; the system's is used");
            return Self::System;
        }
        self
    }

    /// Sets it for a tunnel's connected socket. A tunnel with the system's is better than none, so a
    /// failure is only logged.
    pub fn set(&self, socket: &TcpStream) {
        let name = match self {
            Self::System => return,
            Self::Named(name) => name,
            Self::Auto if is_far(socket) => FAR,
            Self::Auto => return,
        };
        if let Err(error) = SockRef::from(socket).set_tcp_congestion(name.as_bytes()) {
            tracing::debug!(name, %error, "set the TCP congestion control");
        }
    }
}

fn has(name: &str) -> std::io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_congestion(name.as_bytes())
}

fn is_far(socket: &TcpStream) -> bool {
    tcp::round_trip(socket).is_some_and(|round_trip| round_trip >= FAR_AFTER)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let near = near.await.unwrap();
        [near, listener.accept().await.unwrap().0]
    }

    fn control(socket: &TcpStream) -> Vec<u8> {
        let mut name = SockRef::from(socket).tcp_congestion().unwrap();
        name.retain(|byte| *byte != 0);
        name
    }

    #[tokio::test]
    async fn a_named_control_is_set_at_either_end_and_one_that_the_kernel_lacks_changes_nothing() {
        let named: Congestion = "reno".parse().unwrap();
        assert_eq!(named.clone().or_system(), named);
        let unknown: Congestion = "no-such".parse().unwrap();
        assert_eq!(unknown.clone().or_system(), Congestion::System);
        for socket in pair().await {
            named.set(&socket);
            unknown.set(&socket);
            assert_eq!(control(&socket), b"reno");
        }
    }

    #[tokio::test]
    async fn a_near_tunnel_has_the_systems_by_default() {
        for socket in pair().await {
            let before = control(&socket);
            assert!(tcp::round_trip(&socket).unwrap() < FAR_AFTER);
            for text in ["auto", "system"] {
                text.parse::<Congestion>().unwrap().set(&socket);
                assert_eq!(control(&socket), before);
            }
        }
    }
}
