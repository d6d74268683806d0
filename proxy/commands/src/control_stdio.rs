//! `culvert-proxy control-stdio`: connects standard input and output with a socket of this host.
//! The program `culvert` runs it by ssh, or by exec in a proxy's pod: so it reaches the sockets of
//! other hosts, and nothing new listens anywhere.

use std::io::{ErrorKind, Read, Write, stdin, stdout};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// Which socket.
#[derive(Args, Clone, Debug)]
pub struct ControlStdioCommand {
    /// The socket of this host.
    #[arg(long, value_enum, value_name = "SOCKET", default_value_t = Target::Control)]
    to: Target,

    /// Where the redirector of this host has its own admin socket.
    #[arg(
        long,
        env = "CULVERT_REDIRECTOR_ADMIN_SOCKET",
        value_name = "PATH",
        default_value = "/run/culvert/redirector/admin.sock"
    )]
    redirector_admin_socket: PathBuf,
}

/// A socket of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// The proxy's control socket.
    Control,
    /// The proxy's pages: --admin-socket.
    Proxy,
    /// The redirector's pages.
    Redirector,
    /// HTTP CONNECT to nodes: --connect-socket.
    Connect,
}

/// Paths of the proxy's own sockets.
#[derive(Clone, Debug)]
pub struct Sockets {
    /// `--control-socket`.
    pub control: PathBuf,
    /// `--admin-socket`.
    pub admin: PathBuf,
    /// `--connect-socket`.
    pub connect: PathBuf,
}

impl ControlStdioCommand {
    /// Passes bytes on until the socket or standard output is closed. The end of standard input
    /// ends that direction only.
    ///
    /// # Errors
    /// Nothing listens on the socket, or a direction fails.
    pub fn run(&self, own: &Sockets) -> Result<()> {
        let path = match self.to {
            Target::Control => &own.control,
            Target::Proxy => &own.admin,
            Target::Redirector => &self.redirector_admin_socket,
            Target::Connect => &own.connect,
        };
        let socket = UnixStream::connect(path)
            .with_context(|| format!("nothing answers on {}", path.display()))?;
        let input = socket.try_clone().context("copy the socket")?;
        // It ends with the process: a read of standard input cannot be cancelled.
        std::thread::spawn(move || {
            let passed = pass(stdin(), &input);
            if passed.is_ok() {
                // The other end may be gone already.
                drop(input.shutdown(Shutdown::Write));
            }
        });
        pass(&socket, stdout()).with_context(|| format!("pass on what {} says", path.display()))
    }
}

/// Passes on all bytes, each as soon as it is there.
fn pass(mut from: impl Read, mut to: impl Write) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&chunk[..read])?;
        to.flush()?;
    }
}
