//! What the client of an intercepted connection dialled.
//!
//! The connect hook leaves it in the accepted socket's storage, nftables in connection tracking. A connection with neither was
//! made to the intercept port itself.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use aya::maps::{Map, MapData, MapError, SkStorage};
use culvert_redirector_common::SocketDst;
use culvert_redirector_common::names::SOCKETS_PIN;
use socket2::{SockAddr, SockRef};
use tokio::net::TcpStream;

use crate::streams::Frontend;

/// Reads original destinations.
pub(crate) struct OriginalDsts {
    pin: PathBuf,
    opened: Mutex<Option<Opened>>,
}

/// The pinned map, and the pin's inode: an uninstalled and installed redirector has another map.
struct Opened {
    inode: u64,
    map: SkStorage<MapData, SocketDst>,
}

impl OriginalDsts {
    /// `bpffs` is where the redirector pins, usually `/sys/fs/bpf`. The pin may come later, and may be replaced.
    pub(crate) fn new(bpffs: &Path) -> Self {
        Self { pin: bpffs.join(SOCKETS_PIN), opened: Mutex::new(None) }
    }

    /// What the client of `accepted` dialled and how it got here; `None` for a connection made to the intercept port itself.
    pub(crate) fn of(&self, accepted: &TcpStream) -> Option<(SocketAddr, Frontend)> {
        self.stored(accepted)
            .map(|address| (address, Frontend::Ebpf))
            .or_else(|| tracked(accepted).map(|address| (address, Frontend::Nftables)))
    }

    fn stored(&self, accepted: &TcpStream) -> Option<SocketAddr> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = std::fs::metadata(&self.pin).ok()?.ino();
        if opened.as_ref().is_none_or(|opened| opened.inode != inode) {
            match open(&self.pin) {
                Ok(map) => *opened = Some(Opened { inode, map }),
                Err(error) => {
                    tracing::warn!(pin = %self.pin.display(), %error, "open the map of original destinations");
                    return None;
                }
            }
        }
        match opened.as_ref()?.map.get(accepted, 0) {
            Ok(stored) => stored.original_dst(),
            Err(MapError::KeyNotFound) => None,
            Err(error) => {
                tracing::warn!(%error, "read an original destination");
                None
            }
        }
    }
}

fn open(pin: &Path) -> Result<SkStorage<MapData, SocketDst>, MapError> {
    SkStorage::try_from(Map::from_map_data(MapData::from_pin(pin)?)?)
}

/// The original destination in connection tracking. One that equals the socket's own address means that nothing was steered.
fn tracked(accepted: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(accepted);
    let found = found(socket.original_dst_v4()).or_else(|| found(socket.original_dst_v6()))?;
    let own = canonical(accepted.local_addr().ok()?);
    (found != own).then_some(found)
}

fn found(address: io::Result<SockAddr>) -> Option<SocketAddr> {
    address.ok()?.as_socket().map(canonical)
}

/// An IPv4 address in its own family.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}
