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
use culvert_daemon::chain;
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
                    let (reason, fix) = (chain(&error), fix(&error));
                    tracing::warn!(pin = %self.pin.display(), reason, fix, "original destinations cannot be read");
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

/// What to do about a map that cannot be opened; nothing to say where the kernel's own words do.
fn fix(error: &MapError) -> Option<&'static str> {
    let MapError::SyscallError(call) = error else { return None };
    (call.io_error.kind() == io::ErrorKind::PermissionDenied).then_some(
        "the proxy has to run as the redirector's user; kernels before 5.19 also want CAP_BPF, which the unit has and in Kubernetes \
         the overlay kernel-5 gives, and a system call filter has to let bpf() through",
    )
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

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    fn refused(errno: nix::errno::Errno) -> MapError {
        MapError::SyscallError(SyscallError { call: "BPF_OBJ_GET", io_error: errno.into() })
    }

    #[test]
    fn a_map_that_the_kernel_refuses_is_told_with_what_the_proxy_lacks() {
        let fix = fix(&refused(nix::errno::Errno::EPERM)).unwrap();
        assert!(fix.contains("CAP_BPF") && fix.contains("kernel-5"), "{fix}");
    }

    #[test]
    fn a_map_of_a_redirector_that_has_just_gone_is_told_without_a_fix() {
        assert_eq!(super::fix(&refused(nix::errno::Errno::ENOENT)), None);
    }
}
