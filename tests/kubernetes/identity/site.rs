//! Agents of a bare API server's cluster, on this host's loopback. The tests do what kubelet does
//! for their pods: mount the ConfigMap, and write their tokens.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_address;
use culvert_lab::process::Process;
use culvert_lab::self_signed::{AUTHORITY, SelfSigned};
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, apply, edge, get, node, pod, token};
use crate::loopback::http_get;
use crate::proxy::{program, without_proxies};

/// The agent's messages about enrolment.
pub(crate) const NOT_ENROLLED: &str = "not enrolled yet; trying again";
pub(crate) const ENROLLED_AGAIN: &str = "enrolled again with the service account's token";

/// Creates what the tests share: two edge nodes, a cloud node, and the agents' account with one
/// account of each other kind.
pub(crate) fn create_objects(server: &ApiServer) -> Result<()> {
    for (name, address) in [("edge-1", "10.0.3.7"), ("edge-2", "10.0.3.8")] {
        edge(server, name, address)?;
    }
    node(server, "master", "192.0.2.10", &json!({}))?;
    for (namespace, name) in [
        ("culvert-system", "culvert-agent"),
        ("culvert-system", "default"),
        ("default", "culvert-agent"),
    ] {
        apply(
            server,
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": name}}),
        )?;
    }
    Ok(())
}

/// Creates an agent's pod on a node; returns its token.
pub(crate) fn agent_token(server: &ApiServer, name: &str, on: &str) -> Result<String> {
    let uid = pod(server, "culvert-system", name, "culvert-agent", on)?;
    token(
        server,
        ["culvert-system", "culvert-agent"],
        Some("culvert"),
        Some((name, &uid)),
    )
}

/// The disk of an agent's state directory, in a mount namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateDisk {
    /// Without a free byte.
    Full,
    ReadOnly,
}

impl StateDisk {
    /// A shell's command: the state directory is `$0`, and the agent `$@`.
    fn script(self) -> &'static str {
        match self {
            Self::Full => {
                r#"mount -t tmpfs -o size=64k tmpfs "$0" && { head -c 1M /dev/zero > "$0/fill" || :; } && exec "$@""#
            }
            Self::ReadOnly => {
                r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@""#
            }
        }
    }
}

/// An agent's pod: its process, the mounted ConfigMap, and the file of its token.
pub(crate) struct Agent {
    pub(crate) process: Process,
    admin: SocketAddr,
    folder: PathBuf,
    command: Command,
    name: String,
    server: PathBuf,
}

impl Agent {
    /// Starts an agent named `name` with this token. Nothing is mounted yet.
    pub(crate) fn start(server: &ApiServer, name: &str, token: &str, backend: u16) -> Result<Self> {
        Self::start_with(server, name, token, backend, &[])
    }

    /// The same with a state directory on such a disk.
    pub(crate) fn start_on(
        server: &ApiServer,
        name: &str,
        token: &str,
        backend: u16,
        disk: StateDisk,
    ) -> Result<Self> {
        let state = server.folder().join(name).join("state");
        fs::create_dir_all(&state)?;
        let mut command = without_proxies(Path::new("unshare"));
        command.args(["--mount", "sh", "-c", disk.script()]);
        command.arg(state).arg(workspace::binary("culvert-agent"));
        Self::start_as(server, (name, token), backend, command)
    }

    /// Lets the disk take files again.
    pub(crate) fn free(&self, disk: StateDisk) -> Result<()> {
        match disk {
            StateDisk::Full => fs::remove_file(self.seen("fill"))?,
            StateDisk::ReadOnly => {
                let mut remount = Command::new("nsenter");
                remount.args(["--mount", "--target", &self.process.pid().to_string()]);
                remount.args(["mount", "-o", "remount,bind,rw"]);
                workspace::output(remount.arg(self.state("")))?;
            }
        }
        Ok(())
    }

    /// The path of a file in its state directory, as the agent sees it.
    pub(crate) fn seen(&self, file: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.process.pid()));
        let state = self.state(file);
        root.join(state.strip_prefix("/").unwrap_or(&state))
    }

    /// The same with further flags.
    pub(crate) fn start_with(
        server: &ApiServer,
        name: &str,
        token: &str,
        backend: u16,
        further: &[&str],
    ) -> Result<Self> {
        let mut command = program("culvert-agent");
        command.args(further);
        Self::start_as(server, (name, token), backend, command)
    }

    fn start_as(
        server: &ApiServer,
        (name, token): (&str, &str),
        backend: u16,
        mut command: Command,
    ) -> Result<Self> {
        let folder = server.folder().join(name);
        for mounted in ["config", "ports"] {
            fs::create_dir_all(folder.join(mounted))?;
        }
        fs::write(folder.join("token"), token)?;
        let admin = free_address()?;
        command
            .arg("--state-dir")
            .arg(folder.join("state"))
            .arg("--cluster-config")
            .arg(folder.join("config"))
            .arg("--ports-config")
            .arg(folder.join("ports"));
        command
            .arg("--service-account-token")
            .arg(folder.join("token"));
        command.arg("--admin-socket").arg(folder.join("admin.sock"));
        command.args([
            "--admin-listen",
            &admin.to_string(),
            "--localhost-port",
            &backend.to_string(),
        ]);
        let process = Process::start(name, server.folder(), &mut command)?;
        let name = name.to_owned();
        let server = server.folder().to_owned();
        Ok(Self {
            process,
            admin,
            folder,
            command,
            name,
            server,
        })
    }

    /// Mounts the present ConfigMap that the proxies write.
    pub(crate) fn mount(&self, server: &ApiServer) -> Result<()> {
        self.mount_as(server, "culvert-agent", "config")
    }

    /// Mounts the present ConfigMap of ports.
    pub(crate) fn mount_ports(&self, server: &ApiServer) -> Result<()> {
        self.mount_as(server, "culvert-ports", "ports")
    }

    /// Mounts a ConfigMap as kubelet does: a link is switched to a new folder.
    fn mount_as(&self, server: &ApiServer, config_map: &str, folder: &str) -> Result<()> {
        let found = get(server, &["configmap", "-n", "culvert-system", config_map])?;
        let config = self.folder.join(folder);
        let version = found["metadata"]["resourceVersion"]
            .as_str()
            .context("a version")?;
        let files = format!("..{version}");
        fs::create_dir_all(config.join(&files))?;
        for (name, text) in found["data"].as_object().into_iter().flatten() {
            fs::write(
                config.join(&files).join(name),
                text.as_str().unwrap_or_default(),
            )?;
            let link = config.join(name);
            if !link.is_symlink() {
                std::os::unix::fs::symlink(format!("..data/{name}"), link)?;
            }
        }
        std::os::unix::fs::symlink(&files, config.join("..data_tmp"))?;
        fs::rename(config.join("..data_tmp"), config.join("..data"))?;
        Ok(())
    }

    /// Waits until the mounted ConfigMap satisfies a condition. kubelet updates it after some time.
    pub(crate) fn mount_until(
        &self,
        server: &ApiServer,
        what: &str,
        holds: impl Fn(&str, &str) -> bool,
    ) -> Result<()> {
        wait::until(
            &format!("the mounted ConfigMap says {what}"),
            DEADLINE,
            || {
                self.mount(server)?;
                let read = |name: &str| fs::read_to_string(self.folder.join("config").join(name));
                let ca = read("ca.crt")?;
                let proxies = read("proxies")?;
                ensure!(holds(&ca, &proxies), "{proxies}\n{ca}");
                Ok(())
            },
        )
    }

    /// Writes another token as kubelet would, or removes it.
    pub(crate) fn set_token(&self, token: Option<&str>) -> Result<()> {
        let path = self.folder.join("token");
        match token {
            Some(token) => fs::write(path, token)?,
            None => fs::remove_file(path)?,
        }
        Ok(())
    }

    /// Terminates it and starts it again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.terminate(DEADLINE)?;
        self.start_again()
    }

    /// Starts it again once it has ended.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(&self.name, &self.server, &mut self.command)?;
        Ok(())
    }

    /// The path of a file in its state directory.
    pub(crate) fn state(&self, file: &str) -> PathBuf {
        self.folder.join("state").join(file)
    }

    /// Waits until it has logged this message, with fields that contain these texts.
    pub(crate) fn wait_for_log(&mut self, message: &str, fields: &[(&str, &str)]) -> Result<()> {
        self.process.wait_logged(message, fields, DEADLINE)?;
        self.process.check()
    }

    /// Its metrics.
    pub(crate) fn metrics(&self) -> Result<String> {
        http_get(self.admin, "/metrics")
    }

    /// The reason why it is not ready, and remarks.
    pub(crate) fn missing(&self) -> Result<String> {
        http_get(self.admin, "/readyz")
    }
}

/// Creates an authority with openssl, as an operator would, and returns its certificate and key.
pub(crate) fn new_authority(folder: &Path) -> Result<(String, String)> {
    let SelfSigned { certificate, key } =
        SelfSigned::make(folder, "new-ca", "/CN=operator", AUTHORITY)?;
    Ok((fs::read_to_string(certificate)?, fs::read_to_string(key)?))
}
