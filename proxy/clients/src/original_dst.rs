//! The original destination of an intercepted connection.
//!
//! The connect hook stores it for the accepted socket, and nftables in connection tracking. A
//! connection with neither was made to the intercept port itself.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::{Map, MapData, MapError, SkStorage};
use culvert_daemon::{Drain, Gate, chain};
use culvert_proxy_streams::live::Frontend;
use culvert_proxy_streams::sockets::listen::canonical;
use culvert_redirector_common::SocketDst;
use culvert_redirector_common::names::SOCKETS_PIN;
use parking_lot::RwLock;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::net::TcpStream;

/// The interval at which access to the map is tested.
pub const TRIAL: Duration = Duration::from_secs(5);

/// Reads original destinations.
pub struct OriginalDsts {
    pin: PathBuf,
    opened: RwLock<Option<Arc<Opened>>>,
}

/// The pinned map, and the inode of its pin. A redirector that was uninstalled and installed again
/// has another map.
struct Opened {
    inode: u64,
    map: SkStorage<MapData, SocketDst>,
}

impl OriginalDsts {
    /// `bpffs` is where the redirector pins its maps, usually `/sys/fs/bpf`. The pin may appear
    /// later and may be replaced.
    pub fn new(bpffs: &Path) -> Self {
        Self {
            pin: bpffs.join(SOCKETS_PIN),
            opened: RwLock::default(),
        }
    }

    /// The original destination of `accepted` and the mechanism that steered it. `None` for a
    /// connection to the intercept port itself.
    pub(crate) fn of(&self, accepted: &TcpStream) -> Option<(SocketAddr, Frontend)> {
        if let Some(address) = self.look_up_map(accepted) {
            return Some((address, Frontend::Ebpf));
        }
        if let Some(address) = look_up_conntrack(accepted) {
            return Some((address, Frontend::Nftables));
        }
        // Nothing steered it, or the redirector has made another map since the last look.
        self.follow_pin();
        let address = self.look_up_map(accepted)?;
        Some((address, Frontend::Ebpf))
    }

    /// Keeps the gate closed while there is a map that this process cannot read. All connections
    /// that the connect hooks steer are then reset.
    pub async fn watch(self: Arc<Self>, every: Duration, gate: Gate, drain: Drain) -> Result<()> {
        let mut ticks = tokio::time::interval(every);
        loop {
            tokio::select! {
                () = drain.begun() => return Ok(()),
                _now = ticks.tick() => {}
            }
            match self.try_map() {
                Ok(()) => {
                    self.follow_pin();
                    gate.open();
                }
                Err(error) => gate.close(format!(
                    "{error:#}; connections that connect hooks steer are reset: the proxy needs \
                     CAP_BPF on kernels before 6.0, \
                     and a seccomp profile and a security module that let it call bpf()"
                )),
            }
        }
    }

    /// Opens the map if the pin is not that of the one that is open.
    fn follow_pin(&self) {
        let Ok(pin) = std::fs::metadata(&self.pin) else {
            return;
        };
        let inode = pin.ino();
        if matches!(&*self.opened.read(), Some(opened) if opened.inode == inode) {
            return;
        }
        match open(&self.pin) {
            Ok(map) => *self.opened.write() = Some(Arc::new(Opened { inode, map })),
            Err(error) => {
                let reason = chain(&error);
                let fix = fix(&error);
                tracing::warn!(
                    pin = %self.pin.display(),
                    reason,
                    fix,
                    "original destinations cannot be read"
                );
            }
        }
    }

    /// Tests that the map can be read. If there is none, there are no connect hooks either.
    fn try_map(&self) -> Result<()> {
        match std::fs::metadata(&self.pin) {
            Ok(_there) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(error).with_context(|| format!("find {}", self.pin.display()));
            }
        }
        let map = open(&self.pin).with_context(|| format!("open {}", self.pin.display()))?;
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("make a socket")?;
        match map.get(&socket, 0) {
            Ok(_) | Err(MapError::KeyNotFound) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("read {}", self.pin.display())),
        }
    }

    fn look_up_map(&self, accepted: &TcpStream) -> Option<SocketAddr> {
        let opened = self.opened.read().clone()?;
        match opened.map.get(accepted, 0) {
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

/// How to fix access to a map that cannot be opened. `None` if the kernel's message is clear
/// enough.
fn fix(error: &MapError) -> Option<&'static str> {
    let MapError::SyscallError(call) = error else {
        return None;
    };
    if call.io_error.kind() != io::ErrorKind::PermissionDenied {
        return None;
    }
    Some(
        "the proxy has to run as the redirector's user; kernels before 5.19 also want CAP_BPF, \
         which the unit has and in Kubernetes \
         the overlay kernel-5 gives, and a system call filter has to let bpf() through",
    )
}

/// The original destination in connection tracking. If it equals the socket's own address, the
/// connection was not steered.
fn look_up_conntrack(accepted: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(accepted);
    let v4 = address(socket.original_dst_v4());
    let original = match v4 {
        Some(original) => original,
        None => address(socket.original_dst_v6())?,
    };
    if original == canonical(accepted.local_addr().ok()?) {
        return None;
    }
    Some(original)
}

fn address(answer: io::Result<SockAddr>) -> Option<SocketAddr> {
    answer.ok()?.as_socket().map(canonical)
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;
    use culvert_daemon::Readiness;

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    fn refused(errno: nix::errno::Errno) -> MapError {
        MapError::SyscallError(SyscallError {
            call: "BPF_OBJ_GET",
            io_error: errno.into(),
        })
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

    #[tokio::test]
    async fn a_map_that_cannot_be_read_keeps_the_proxy_from_being_ready() {
        let bpffs = tempfile::tempdir().unwrap();
        let original_dsts = Arc::new(OriginalDsts::new(bpffs.path()));
        let readiness = Readiness::default();
        let drain = Drain::default();
        let watched = original_dsts.watch(
            SHORT,
            readiness.gate("original destinations"),
            drain.clone(),
        );
        let changes = async {
            readiness.ready_without(&[]).await;
            let pin = bpffs.path().join(SOCKETS_PIN);
            std::fs::create_dir_all(pin.parent().unwrap()).unwrap();
            // A file in place of the map: the kernel refuses it as it refuses a map without
            // permission.
            std::fs::write(&pin, "").unwrap();
            while readiness.missing().is_empty() {
                tokio::task::yield_now().await;
            }
            let (_, reason) = readiness.missing().remove(0);
            assert!(
                reason.contains(SOCKETS_PIN) && reason.contains("CAP_BPF"),
                "{reason}"
            );
            std::fs::remove_file(&pin).unwrap();
            readiness.ready_without(&[]).await;
            drain.start();
        };
        let (watched, ()) = tokio::join!(watched, changes);
        watched.unwrap();
    }
}
