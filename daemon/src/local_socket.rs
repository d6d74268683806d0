//! Unix sockets of the programs: not reachable before their mode is set, and removed with their
//! owner.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use tokio::net::{UnixListener, UnixStream};

/// A bound socket that is removed with its owner, unless another process has it.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    access: SocketAccess,
    /// The user id of the program.
    owner: u32,
    /// Device and inode of the path: it is removed only if it still leads here.
    file: (u64, u64),
    given: Arc<AtomicBool>,
}

/// Permissions to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketAccess {
    /// Root and the program's own user: mode 0600, and the peer's user is checked.
    Owner,
    /// Also members of the socket's group: mode 0660.
    Group,
}

impl LocalSocket {
    /// Binds the path, and replaces a socket without a listener. It binds in a private directory,
    /// sets the mode and then moves the socket, so that no other user ever reaches it.
    ///
    /// # Errors
    /// Another process listens there, or the path cannot be written.
    pub fn bind(path: &Path, access: SocketAccess) -> Result<Self> {
        let directory = path
            .parent()
            .with_context(|| format!("{} has no directory", path.display()))?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)
            .with_context(|| format!("make the directory {}", directory.display()))?;
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            bail!(
                "another process listens on {}: stop it, or choose another socket",
                path.display()
            );
        }
        let private = tempfile::Builder::new()
            .prefix(".culvert-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(directory)
            .with_context(|| format!("write to {}", directory.display()))?;
        let hidden = private.path().join("s");
        Self::bind_hidden(&hidden, path, access)
            .with_context(|| format!("listen on {}", path.display()))
    }

    /// Binds a socket at `hidden`, where no client finds it, and moves it to `path` when its
    /// permissions are set.
    fn bind_hidden(hidden: &Path, path: &Path, access: SocketAccess) -> io::Result<Self> {
        let listener = UnixListener::bind(hidden)?;
        std::fs::set_permissions(hidden, std::fs::Permissions::from_mode(access.mode()))?;
        let mut socket = Self::at(listener, hidden, access)?;
        std::fs::rename(hidden, path)?;
        path.clone_into(&mut socket.path);
        Ok(socket)
    }

    /// Takes a socket over from another process, with its path.
    ///
    /// # Errors
    /// The path does not exist, or the socket cannot be used.
    pub fn adopt(
        listener: std::os::unix::net::UnixListener,
        path: &Path,
        access: SocketAccess,
    ) -> Result<Self> {
        Self::from_std(listener, path, access)
            .with_context(|| format!("take over {}", path.display()))
    }

    fn from_std(
        listener: std::os::unix::net::UnixListener,
        path: &Path,
        access: SocketAccess,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::at(UnixListener::from_std(listener)?, path, access)
    }

    fn at(listener: UnixListener, path: &Path, access: SocketAccess) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
            access,
            owner: metadata.uid(),
            file: (metadata.dev(), metadata.ino()),
            given: Arc::default(),
        })
    }

    /// A second descriptor of the socket.
    pub(crate) fn copy(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// The same socket, whose path stays if `given` is set.
    pub(crate) fn unless(mut self, given: Arc<AtomicBool>) -> Self {
        self.given = given;
        self
    }

    /// Accepts the next connection of a permitted user; closes others.
    ///
    /// # Errors
    /// The kernel's, as without free file descriptors.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if self.admits(&stream) {
                return Ok(stream);
            }
        }
    }

    fn admits(&self, stream: &UnixStream) -> bool {
        if self.access == SocketAccess::Group {
            return true;
        }
        let uid = stream.peer_cred().map(|peer| peer.uid());
        let admitted = uid
            .as_ref()
            .is_ok_and(|uid| *uid == 0 || *uid == self.owner);
        if !admitted {
            tracing::warn!(
                socket = %self.path.display(),
                ?uid,
                "connection refused: not root and not the program's user"
            );
        }
        admitted
    }
}

impl SocketAccess {
    const fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
        }
    }
}

/// Whether the other end is root's or of this program's user.
pub(crate) fn is_trusted(stream: &UnixStream) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        let is_ours =
            std::fs::metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.file);
        if is_ours && !self.given.load(Ordering::Acquire) {
            // If this fails, the next bind replaces the stale socket.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_private_replaces_a_stale_one_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/control.sock");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = LocalSocket::bind(&path, SocketAccess::Owner).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(
            LocalSocket::bind(&path, SocketAccess::Owner)
                .unwrap_err()
                .to_string()
                .contains("another process listens")
        );
        let (client, served) = tokio::join!(UnixStream::connect(&path), async {
            // The bind that was refused above has left a connection.
            socket.accept().await.unwrap();
            socket.accept().await
        });
        client.unwrap();
        served.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_socket_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        drop(
            LocalSocket::bind(
                &directory.path().join("directory.sock"),
                SocketAccess::Owner,
            )
            .unwrap(),
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
