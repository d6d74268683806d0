//! Proves that connects are steered, with a connect that sends no packet.
//!
//! A socket in repair mode (`TCP_REPAIR`, made for moving connections between hosts) goes through
//! `connect()`, including the hooks, and is then connected without a packet to the proxy. The
//! destination that the hook stored for the socket is the proof.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use aya::maps::{MapData, MapError, SkStorage};
use culvert_redirector_common::names::SOCKETS_MAP;
use culvert_redirector_common::{Endpoint, Role, SocketDst};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket,
    sockopt,
};

use super::tables::open_map;
use super::{Pins, cgroup};

/// Any port: all ports of a VIP are steered alike.
const PORT: u16 = 9;

/// The result of a proof that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A connect of this process was steered.
    Steered,
    /// Not known: this process is not in the cgroup, or may not use repair mode.
    NotPossible,
}

/// Why attached hooks are not known to steer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProofError {
    #[error("open the map {SOCKETS_MAP}")]
    OpenMap(#[source] MapError),
    #[error("try to connect to the VIP {0}")]
    Connect(SocketAddr, #[source] io::Error),
    #[error(
        "a connect to the VIP {0} was not steered; another program of the cgroup may have taken \
         it: \
         culvert-redirector status"
    )]
    NotSteered(SocketAddr),
}

/// Connects to `vip`. A VIP is steered whether or not a node has it.
pub(crate) fn prove(pins: &Pins, cgroup: &Path, vip: IpAddr) -> Result<Proof, ProofError> {
    if !cgroup::has_us(cgroup) {
        return Ok(Proof::NotPossible);
    }
    let vip = SocketAddr::new(vip, PORT);
    let sockets: SkStorage<MapData, SocketDst> =
        open_map(&pins.map(SOCKETS_MAP)).map_err(ProofError::OpenMap)?;
    let family = if vip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let client = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|error| not_connected(vip, error))?;
    if setsockopt(&client, sockopt::TcpRepair, &1).is_err() {
        return Ok(Proof::NotPossible);
    }
    dial(&client, vip).map_err(|error| not_connected(vip, error))?;
    match sockets.get(&client, 0) {
        Ok(stored) if stored.endpoint(Role::Client) == Some(Endpoint::from(vip)) => {
            Ok(Proof::Steered)
        }
        _ => Err(ProofError::NotSteered(vip)),
    }
}

fn not_connected(vip: SocketAddr, error: nix::Error) -> ProofError {
    ProofError::Connect(vip, error.into())
}

fn dial(client: &OwnedFd, vip: SocketAddr) -> nix::Result<()> {
    match vip {
        SocketAddr::V4(v4) => connect(client.as_raw_fd(), &SockaddrIn::from(v4)),
        SocketAddr::V6(v6) => connect(client.as_raw_fd(), &SockaddrIn6::from(v6)),
    }
}
