//! Debian's programs that the demo, the tests and the end-to-end run start. They are unpacked under `target/tools` and
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
    /// What runs containers for kubelets, with its client `ctr`.
    Containerd,
    /// What containerd starts containers with.
    Runc,
    /// The plugins that connect pods to networks. The program is one of them.
    CniPlugins,
    /// A shell with the usual programs, static.
    Busybox,
    /// The firewall of Ubuntu, in Python.
    Ufw,
    /// The firewall of Fedora, in Python.
    Firewalld,
    /// What connects rootless containers, of Docker and of Podman before 5.
    Slirp4netns,
    /// The same, of Podman 5.
    Passt,
}

impl Unpacked {
    /// Programs that only a cluster needs.
    pub const FOR_CLUSTER: [Self; 4] = [
        Self::Containerd,
        Self::Runc,
        Self::CniPlugins,
        Self::Busybox,
    ];

    /// The package of the program, and those of libraries that it must have.
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Prometheus => &["prometheus"],
            Self::NodeExporter => &["prometheus-node-exporter"],
            Self::SystemdResolved => &["systemd-resolved", "libsystemd-shared"],
            Self::SshServer => &["openssh-server", "libwrap0"],
            Self::Nginx => &["nginx", "libpcre2-8-0"],
            Self::Containerd => &["containerd"],
            Self::Runc => &["runc"],
            Self::CniPlugins => &["containernetworking-plugins"],
            Self::Busybox => &["busybox-static"],
            Self::Ufw => &["ufw"],
            Self::Firewalld => &[
                "firewalld",
                "python3-firewall",
                "python3-nftables",
                "python3-dbus",
                "python3-gi",
                "python3-cap-ng",
                "libgirepository-1.0-1",
                "gir1.2-glib-2.0",
            ],
            Self::Slirp4netns => &["slirp4netns", "libslirp0"],
            Self::Passt => &["passt"],
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
            Self::Containerd => "usr/bin/containerd",
            Self::Runc => "usr/sbin/runc",
            Self::CniPlugins => "usr/lib/cni/ptp",
            Self::Busybox => "bin/busybox",
            Self::Ufw => "usr/sbin/ufw",
            Self::Firewalld => "usr/sbin/firewalld",
            Self::Slirp4netns => "usr/bin/slirp4netns",
            Self::Passt => "usr/bin/pasta",
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
