//! Debian's programs that the demo and the tests run. They are unpacked under `target/tools` and
//! never installed.

use std::path::PathBuf;

use crate::workspace;

/// A program unpacked from its Debian package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// The monitoring server.
    Prometheus,
    /// The exporter of a node's metrics.
    NodeExporter,
    /// The resolver of hosts with systemd.
    SystemdResolved,
    /// OpenSSH's server.
    SshServer,
    /// A web server that is a reverse proxy too.
    Nginx,
}

impl Unpacked {
    /// The package of the program, and those of libraries that it must have.
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Prometheus => &["prometheus"],
            Self::NodeExporter => &["prometheus-node-exporter"],
            Self::SystemdResolved => &["systemd-resolved", "libsystemd-shared"],
            Self::SshServer => &["openssh-server", "libwrap0"],
            Self::Nginx => &["nginx", "libpcre2-8-0"],
        }
    }

    /// The top of the unpacked package.
    pub fn folder(self) -> PathBuf {
        workspace::tools_dir().join(self.packages()[0])
    }

    /// The program.
    pub fn program(self) -> PathBuf {
        self.folder().join(match self {
            Self::Prometheus => "usr/bin/prometheus",
            Self::NodeExporter => "usr/bin/prometheus-node-exporter",
            Self::SystemdResolved => "lib/systemd/systemd-resolved",
            Self::SshServer => "usr/sbin/sshd",
            Self::Nginx => "usr/sbin/nginx",
        })
    }

    /// Whether it is unpacked.
    pub fn is_there(self) -> bool {
        self.program().is_file()
    }

    /// Its `LD_LIBRARY_PATH`: libraries of other versions may be installed.
    pub fn libraries(self) -> String {
        let folder = self
            .folder()
            .join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let folder = folder.display();
        format!("{folder}:{folder}/systemd")
    }
}
