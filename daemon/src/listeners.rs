//! The listening sockets of a process that may be replaced without a gap: taken over from the
//! process before it, or bound. A copy of each stays here for the next process. A socket closes
//! when its owner and its copy are gone.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use parking_lot::{Mutex, MutexGuard};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::handover::{Handed, HandedKind};
use crate::local_socket::{LocalSocket, SocketAccess};

/// Who connects to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketUse {
    /// Agents. They find another proxy if this one is about to end.
    Agents,
    /// Clients. They have nowhere else to go.
    Clients,
    /// Programs that try again: on the control and directory sockets, and other proxies.
    Programs,
    /// The admin server and the hand-over itself, which work until the process ends.
    Admin,
}

/// The listening sockets of this process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    inherited: Vec<(Handed, OwnedFd)>,
    copies: Vec<Copied>,
}

/// The copy of a listening socket.
#[derive(Debug)]
struct Copied {
    handed: Handed,
    used_by: SocketUse,
    descriptor: OwnedFd,
    /// Set while another process may have the socket: then its path is not removed.
    given: Arc<AtomicBool>,
}

impl Listeners {
    /// Adds descriptors of another process. Those that are not named are closed.
    pub fn inherit(&self, handed: Vec<Handed>, descriptors: Vec<OwnedFd>) {
        self.lock()
            .inherited
            .extend(handed.into_iter().zip(descriptors));
    }

    /// The inherited listener of this address, or else a new one.
    ///
    /// # Errors
    /// It cannot be bound, or there are no descriptors.
    pub fn tcp(
        &self,
        address: SocketAddr,
        used_by: SocketUse,
        bind: impl FnOnce() -> io::Result<TcpListener>,
    ) -> io::Result<tokio::net::TcpListener> {
        let at = address.to_string();
        let mut inherited = self.inherited(HandedKind::Tcp, &at).into_iter();
        let listener = match inherited.find_map(|descriptor| as_tcp(descriptor, address)) {
            Some(listener) => listener,
            None => bind()?,
        };
        listener.set_nonblocking(true)?;
        let descriptor = OwnedFd::from(listener.try_clone()?);
        self.add_copy(HandedKind::Tcp, at, used_by, descriptor);
        tokio::net::TcpListener::from_std(listener)
    }

    /// The inherited Unix socket of this path, or else a new one, also if the path was removed.
    /// An inherited one's is not removed before [`Self::own`].
    ///
    /// # Errors
    /// It cannot be bound.
    pub fn local(
        &self,
        path: &Path,
        access: SocketAccess,
        used_by: SocketUse,
    ) -> Result<LocalSocket> {
        let at = path.display().to_string();
        let mut inherited = self.inherited(HandedKind::Unix, &at).into_iter();
        let inherited = inherited.find_map(as_unix);
        let is_inherited = inherited.is_some() && path.exists();
        let socket = match inherited {
            Some(listener) if is_inherited => LocalSocket::adopt(listener, path, access)?,
            _ => LocalSocket::bind(path, access)?,
        };
        let given = self.add_copy(HandedKind::Unix, at, used_by, socket.copy()?);
        given.store(is_inherited, Ordering::Release);
        Ok(socket.unless(given))
    }

    /// The inherited lock on this file.
    #[must_use]
    pub fn locked(&self, file: &Path) -> Option<File> {
        let wanted = std::fs::metadata(file).ok()?;
        let at = file.display().to_string();
        for descriptor in self.inherited(HandedKind::Lock, &at) {
            let lock = File::from(descriptor);
            if let Ok(found) = lock.metadata()
                && (found.dev(), found.ino()) == (wanted.dev(), wanted.ino())
            {
                return Some(lock);
            }
        }
        None
    }

    /// The process before this one has let go: the paths of the inherited sockets are this one's to
    /// remove, and what it does not want is closed.
    pub fn own(&self) {
        let mut state = self.lock();
        for copy in &state.copies {
            copy.given.store(false, Ordering::Release);
        }
        for (handed, _) in state.inherited.drain(..) {
            tracing::info!(
                kind = handed.kind,
                at = handed.at,
                "a socket of the process before this one is not wanted"
            );
        }
    }

    /// Copies of the sockets of these users, for another process. From now on their paths stay
    /// when their owners end, for the other process may have them then.
    ///
    /// # Errors
    /// There are no descriptors.
    pub fn offer(&self, used_by: &[SocketUse]) -> io::Result<(Vec<Handed>, Vec<OwnedFd>)> {
        self.set_given(used_by, true);
        let mut handed = Vec::new();
        let mut descriptors = Vec::new();
        for copy in &self.lock().copies {
            if used_by.contains(&copy.used_by) {
                handed.push(copy.handed.clone());
                descriptors.push(copy.descriptor.try_clone()?);
            }
        }
        Ok((handed, descriptors))
    }

    /// The other process does not have the sockets of these users.
    pub fn reclaim(&self, used_by: &[SocketUse]) {
        self.set_given(used_by, false);
    }

    fn set_given(&self, used_by: &[SocketUse], given: bool) {
        for copy in &self.lock().copies {
            if used_by.contains(&copy.used_by) {
                copy.given.store(given, Ordering::Release);
            }
        }
    }

    /// Drops the copies of the sockets of these users. They close with their owners.
    pub fn release(&self, used_by: &[SocketUse]) {
        self.lock()
            .copies
            .retain(|copy| !used_by.contains(&copy.used_by));
    }

    /// Drops the copy of this address's listener. It closes with its owner.
    pub fn close(&self, address: SocketAddr) {
        let at = address.to_string();
        self.lock()
            .copies
            .retain(|copy| copy.handed.kind != HandedKind::Tcp.name() || copy.handed.at != at);
    }

    fn inherited(&self, kind: HandedKind, at: &str) -> Vec<OwnedFd> {
        let mut state = self.lock();
        let mut wanted = Vec::new();
        let mut rest = Vec::new();
        for (handed, descriptor) in std::mem::take(&mut state.inherited) {
            if handed.kind == kind.name() && handed.at == at {
                wanted.push(descriptor);
            } else {
                rest.push((handed, descriptor));
            }
        }
        state.inherited = rest;
        wanted
    }

    fn add_copy(
        &self,
        kind: HandedKind,
        at: String,
        used_by: SocketUse,
        descriptor: OwnedFd,
    ) -> Arc<AtomicBool> {
        let given = Arc::<AtomicBool>::default();
        let kind = kind.name().to_owned();
        self.lock().copies.push(Copied {
            handed: Handed { kind, at },
            used_by,
            descriptor,
            given: given.clone(),
        });
        given
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

/// Whether it is a listening stream socket of one of these families: the name that came with it is
/// not believed.
#[must_use]
pub fn is_listener(descriptor: &OwnedFd, families: &[AddressFamily]) -> bool {
    sockopt::socket_acceptconn(descriptor) == Ok(true)
        && sockopt::socket_type(descriptor) == Ok(SocketType::STREAM)
        && sockopt::socket_domain(descriptor).is_ok_and(|family| families.contains(&family))
}

/// The families of listeners that are passed on.
pub const LISTENER_FAMILIES: [AddressFamily; 3] = [
    AddressFamily::INET,
    AddressFamily::INET6,
    AddressFamily::UNIX,
];

fn as_tcp(descriptor: OwnedFd, wanted: SocketAddr) -> Option<TcpListener> {
    if !is_listener(&descriptor, &LISTENER_FAMILIES[..2]) {
        return None;
    }
    let listener = TcpListener::from(descriptor);
    let bound = listener.local_addr().ok()?;
    // A host without IPv6 has 0.0.0.0 in place of [::].
    let any = bound.ip().is_unspecified() && wanted.ip().is_unspecified();
    if bound.port() == wanted.port() && (any || bound.ip() == wanted.ip()) {
        Some(listener)
    } else {
        None
    }
}

fn as_unix(descriptor: OwnedFd) -> Option<UnixListener> {
    if is_listener(&descriptor, &LISTENER_FAMILIES[2..]) {
        Some(descriptor.into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [SocketUse; 2] = [SocketUse::Clients, SocketUse::Agents];

    fn any_port() -> io::Result<TcpListener> {
        TcpListener::bind("127.0.0.1:0")
    }

    fn refused(address: SocketAddr) -> bool {
        std::net::TcpStream::connect(address).is_err()
    }

    #[tokio::test]
    async fn a_taken_over_port_never_refuses_and_closes_with_its_last_owner() {
        let address = any_port().unwrap().local_addr().unwrap();
        let before = Listeners::default();
        let after = Listeners::default();
        let bind = || TcpListener::bind(address);
        let old = before.tcp(address, SocketUse::Clients, bind).unwrap();
        let waiting = std::net::TcpStream::connect(address).unwrap();
        let (handed, copies) = before.offer(&ALL).unwrap();
        after.inherit(handed, copies);
        before.release(&ALL);
        drop(old);
        let never = || unreachable!("it is inherited");
        let new = after.tcp(address, SocketUse::Clients, never).unwrap();
        let (_, peer) = new.accept().await.unwrap();
        assert_eq!(
            peer,
            waiting.local_addr().unwrap(),
            "nobody in the queue is lost"
        );
        drop(new);
        assert!(!refused(address), "the copy is for the next process");
        after.release(&ALL);
        assert!(refused(address));
    }

    #[tokio::test]
    async fn a_socket_that_is_not_what_it_is_called_is_closed() {
        let wanted: SocketAddr = any_port().unwrap().local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let other = any_port().unwrap();
        let connected = std::net::TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let unix = UnixListener::bind(folder.path().join("s")).unwrap();
        let file = File::open("/dev/null").unwrap();
        let listeners = Listeners::default();
        for descriptor in [
            other.into(),
            OwnedFd::from(connected),
            unix.into(),
            file.into(),
        ] {
            let handed = Handed {
                kind: "tcp".to_owned(),
                at: wanted.to_string(),
            };
            listeners.inherit(vec![handed], vec![descriptor]);
        }
        let bind = || TcpListener::bind(wanted);
        let listener = listeners.tcp(wanted, SocketUse::Clients, bind).unwrap();
        assert_eq!(listener.local_addr().unwrap(), wanted, "bound again");
    }

    #[tokio::test]
    async fn a_given_path_stays_and_a_released_one_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connect.sock");
        let before = Listeners::default();
        let after = Listeners::default();
        let bind =
            |listeners: &Listeners| listeners.local(&path, SocketAccess::Group, SocketUse::Clients);
        let old = bind(&before).unwrap();
        let (handed, copies) = before.offer(&ALL).unwrap();
        after.inherit(handed, copies);
        drop(bind(&after).unwrap());
        assert!(path.exists(), "the heir failed, the socket works");
        let (handed, copies) = before.offer(&ALL).unwrap();
        let after = Listeners::default();
        after.inherit(handed, copies);
        let new = bind(&after).unwrap();
        before.release(&ALL);
        after.own();
        drop(old);
        let client = std::os::unix::net::UnixStream::connect(&path);
        let client = client.unwrap();
        let _served = new.accept().await.unwrap();
        drop(client);
        after.release(&ALL);
        drop(new);
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_is_taken_over_only_on_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let wanted = folder.path().join("lock");
        let other = folder.path().join("other");
        for path in [&wanted, &other] {
            File::create(path).unwrap();
        }
        let listeners = Listeners::default();
        let handed = Handed {
            kind: "lock".to_owned(),
            at: wanted.display().to_string(),
        };
        let other = File::open(other).unwrap();
        listeners.inherit(vec![handed.clone()], vec![other.into()]);
        assert!(listeners.locked(&wanted).is_none());
        let lock = File::open(&wanted).unwrap();
        listeners.inherit(vec![handed], vec![lock.into()]);
        assert!(listeners.locked(&wanted).is_some());
    }
}
