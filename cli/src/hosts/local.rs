//! Programs of this host, by their sockets.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use tokio::net::UnixStream;
use tokio::process::Command;

use super::{Connection, EdgeProgram, Finished, NoAnswer, Socket};

/// The folder of the sockets.
#[derive(Debug)]
pub(super) struct Local {
    run_dir: PathBuf,
}

impl Local {
    pub(super) fn new(run_dir: &Path) -> Self {
        Self {
            run_dir: run_dir.to_owned(),
        }
    }

    /// Whether a proxy has made its sockets here.
    pub(super) fn has_proxy(&self) -> bool {
        self.path(Socket::Control).exists()
    }

    /// The edge programs that have made their sockets here.
    pub(super) fn edge_programs(&self) -> Vec<EdgeProgram> {
        let mut programs = Vec::new();
        for (program, folder) in [("culvert-agent", "agent"), ("culvert-hub", "hub")] {
            let admin_socket = self.run_dir.join(folder).join("admin.sock");
            if admin_socket.exists() {
                programs.push(EdgeProgram {
                    program,
                    admin_socket,
                });
            }
        }
        programs
    }

    pub(super) async fn connect(&self, socket: Socket) -> Result<Connection, NoAnswer> {
        let path = self.path(socket);
        let stream = connect(&path).await?;
        Ok(Connection::direct(stream))
    }

    pub(super) async fn run(&self, words: &[String]) -> Result<Finished, NoAnswer> {
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("CULVERT_CONTROL_SOCKET", self.path(Socket::Control))
            .stdin(Stdio::null());
        Finished::of(&mut command).await
    }

    fn path(&self, socket: Socket) -> PathBuf {
        let name = match socket {
            Socket::Control => "control.sock",
            Socket::Proxy => "proxy/admin.sock",
            Socket::Redirector => "redirector/admin.sock",
            Socket::Connect => "connect.sock",
        };
        self.run_dir.join(name)
    }
}

async fn connect(path: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(path).await;
    stream.with_context(|| format!("nothing answers on {}", path.display()))
}
