//! A bare Kubernetes API server for one test: etcd and kube-apiserver on this machine's loopback,
//! without controllers and nodes. The test has all permissions in it, and its audit log records
//! every request.
//!
//! The programs are those that `cargo xtask kube` compiles, or as envtest finds them:
//! `KUBEBUILDER_ASSETS` names a folder with etcd, kube-apiserver and kubectl.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use data_encoding::HEXLOWER;

use crate::kubernetes::{ASSETS, Programs};
use crate::process::{self, Process, bound};
use crate::{ports, skip, wait, workspace};

/// Half a minute is usual on two busy cores.
const READY: Duration = Duration::from_secs(120);
/// Logs every request with its user, verb, resource and status, without bodies.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}"#;

/// The folder of etcd's data.
const ETCD_DATA: &str = "etcd";

/// Nodes whose kubelets may send requests, within the limits of NodeRestriction.
const KUBELETS: [&str; 2] = ["edge-1", "worker-1"];

/// The folder of the programs, if they are there; otherwise reports that the test is skipped.
///
/// # Panics
/// Under `REQUIRE_PRIVILEGED=1`, if they are not there.
pub fn assets() -> Option<PathBuf> {
    let programs = Programs::chosen(None);
    if let Programs::Compiled(release) = &programs
        && !release.is_there()
    {
        skip::skip(&format!(
            "there is no Kubernetes {release}: `cargo xtask kube` compiles it, or {ASSETS} names \
             a folder with etcd, kube-apiserver and kubectl"
        ));
        return None;
    }
    Some(programs.folder())
}

/// A running API server. Dropping it ends it and removes its data.
pub struct ApiServer {
    assets: PathBuf,
    folder: PathBuf,
    flags: Vec<String>,
    ports: Ports,
    /// `None` while its data is replaced.
    etcd: Option<Process>,
    /// `None` while it is stopped.
    server: Option<Process>,
}

/// What etcd had when [`ApiServer::back_up`] was called.
pub struct Backup(PathBuf);

#[derive(Clone, Copy)]
struct Ports {
    etcd: u16,
    etcd_peers: u16,
    server: u16,
}

impl ApiServer {
    /// Starts an API server with `flags` in addition to its own, and waits until it is ready.
    ///
    /// # Errors
    /// It is not ready in time.
    pub fn start(assets: &Path, flags: &[&str]) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        let parent = workspace::target_dir().join("apiserver");
        SWEPT.call_once(|| remove_left_behind(&parent));
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let ports = Ports::free()?;
        write_files(&folder, ports)?;
        let etcd = Process::start("etcd", &folder, &mut etcd(assets, &folder, ports))?;
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut started = Self {
            assets: assets.to_owned(),
            folder,
            flags,
            ports,
            etcd: Some(etcd),
            server: None,
        };
        started.resume()?;
        Ok(started)
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Its port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.server
    }

    /// Writes a kubeconfig with this token, and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_of(&self, name: &str, token: &str) -> Result<PathBuf> {
        write_kubeconfig(&self.folder, self.ports.server, name, token)
    }

    /// kubectl as an administrator.
    pub fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(self.assets.join("kubectl"));
        kubectl
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", &self.folder);
        kubectl
    }

    /// kubectl with the permissions of a node's kubelet: edge-1 or worker-1.
    pub fn kubelet(&self, node: &str) -> Command {
        let mut kubectl = self.kubectl();
        kubectl.env("KUBECONFIG", self.folder.join(format!("{node}.kubeconfig")));
        kubectl
    }

    /// The minor version, such as 31 of 1.31. The server's features depend on it.
    ///
    /// # Errors
    /// The server does not report it.
    pub fn minor_version(&self) -> Result<u32> {
        let said = workspace::output(self.kubectl().args(["get", "--raw", "/version"]))?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        let minor = said["minor"]
            .as_str()
            .unwrap_or_default()
            .trim_end_matches('+');
        minor.parse().with_context(|| said.to_string())
    }

    /// The audit log: one JSON object of kind `Event` per line for each answered request.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.jsonl")
    }

    /// A folder for the test's own files, removed with the server.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills kube-apiserver and keeps its data. Watches break.
    ///
    /// # Errors
    /// The kernel refuses the signal.
    pub fn stop(&mut self) -> Result<()> {
        match self.server.take() {
            // On SIGTERM it would wait for watches for up to a minute.
            Some(mut server) => server.kill(),
            None => Ok(()),
        }
    }

    /// A copy of etcd's data as it is now. kube-apiserver is started again.
    ///
    /// # Errors
    /// The data cannot be copied, or the server is not ready in time.
    pub fn back_up(&mut self) -> Result<Backup> {
        self.stop_all()?;
        let number = fs::read_dir(&self.folder)?.count();
        let backup = self.folder.join(format!("backup-{number}"));
        copy(&self.folder.join(ETCD_DATA), &backup)?;
        self.start_all()?;
        Ok(Backup(backup))
    }

    /// Gives etcd the data of a backup, with its old versions of resources, as an operator does
    /// after a disaster.
    ///
    /// # Errors
    /// The data cannot be copied, or the server is not ready in time.
    pub fn restore(&mut self, backup: &Backup) -> Result<()> {
        self.stop_all()?;
        fs::remove_dir_all(self.folder.join(ETCD_DATA))?;
        copy(&backup.0, &self.folder.join(ETCD_DATA))?;
        self.start_all()
    }

    /// Makes it another cluster, a new one, at the same address and with the same certificates.
    ///
    /// # Errors
    /// The data cannot be removed, or the server is not ready in time.
    pub fn lose_everything(&mut self) -> Result<()> {
        self.stop_all()?;
        fs::remove_dir_all(self.folder.join(ETCD_DATA))?;
        self.start_all()
    }

    fn stop_all(&mut self) -> Result<()> {
        self.stop()?;
        match self.etcd.take() {
            Some(mut etcd) => etcd.kill(),
            None => Ok(()),
        }
    }

    fn start_all(&mut self) -> Result<()> {
        let mut command = etcd(&self.assets, &self.folder, self.ports);
        self.etcd = Some(Process::start("etcd", &self.folder, &mut command)?);
        self.resume()
    }

    /// Starts kube-apiserver again with the same data, and waits until it is ready.
    ///
    /// # Errors
    /// It is not ready in time.
    pub fn resume(&mut self) -> Result<()> {
        let mut command = server(&self.assets, &self.folder, self.ports);
        let server = self.server.insert(Process::start(
            "kube-apiserver",
            &self.folder,
            command.args(&self.flags),
        )?);
        let kubectl = self.assets.join("kubectl");
        let kubeconfig = self.folder.join("admin.kubeconfig");
        wait::until("kube-apiserver is ready", READY, || {
            if let Some(etcd) = &mut self.etcd {
                etcd.check()?;
            }
            server.check()?;
            let mut ask = Command::new(&kubectl);
            ask.env("KUBECONFIG", &kubeconfig).args([
                "get",
                "--raw",
                "/readyz",
                "--request-timeout",
                "5s",
            ]);
            workspace::output(&mut ask).map(drop)
        })
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            process::show_logs(&self.folder);
        }
        if let Some(mut server) = self.server.take() {
            // It may have ended by itself.
            server.kill().ok();
        }
        if let Some(mut etcd) = self.etcd.take() {
            etcd.kill().ok();
        }
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("remove {}: {error}", self.folder.display());
        }
    }
}

impl Ports {
    fn free() -> Result<Self> {
        Ok(Self {
            etcd: ports::free()?,
            etcd_peers: ports::free()?,
            server: ports::free()?,
        })
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    workspace::output(copy.arg("-a").arg(from).arg(to)).map(drop)
}

/// Removes the folders of killed processes. Their programs have ended with them.
fn remove_left_behind(parent: &Path) {
    for folder in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = folder.file_name();
        if let Some(name) = name.to_str()
            && let Some(pid) = name.split('-').next()
            && !Path::new("/proc").join(pid).exists()
        {
            fs::remove_dir_all(folder.path()).ok();
        }
    }
}

/// Writes keys, the administrator's token, the audit policy and the administrator's kubeconfig.
fn write_files(folder: &Path, ports: Ports) -> Result<()> {
    let mut secret = [0; 16];
    fs::File::open("/dev/urandom")?
        .read_exact(&mut secret)
        .context("read /dev/urandom")?;
    let token = HEXLOWER.encode(&secret);
    let mut tokens = format!("{token},admin,admin,system:masters\n");
    for node in KUBELETS {
        tokens.push_str(&format!(
            "{token}-{node},system:node:{node},{node},system:nodes\n"
        ));
        write_kubeconfig(folder, ports.server, node, &format!("{token}-{node}"))?;
    }
    fs::write(folder.join("tokens.csv"), tokens)?;
    fs::write(folder.join("audit-policy.json"), AUDIT_POLICY)?;
    let mut key = Command::new("openssl");
    workspace::output(
        key.args(["genrsa", "-out"])
            .arg(folder.join("accounts.key"))
            .arg("2048"),
    )?;
    write_kubeconfig(folder, ports.server, "admin", &token).map(drop)
}

fn write_kubeconfig(folder: &Path, port: u16, name: &str, token: &str) -> Result<PathBuf> {
    ensure!(!name.contains('/'), "{name:?} is not a file name");
    let path = folder.join(format!("{name}.kubeconfig"));
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            // kube-apiserver creates this file, with its authority.
            "certificate-authority": folder.join("certificates/apiserver.crt")}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
    });
    fs::write(&path, config.to_string()).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

fn etcd(assets: &Path, folder: &Path, ports: Ports) -> Command {
    let clients = format!("http://127.0.0.1:{}", ports.etcd);
    let peers = format!("http://127.0.0.1:{}", ports.etcd_peers);
    let mut command = bound(&assets.join("etcd"));
    command.arg("--data-dir").arg(folder.join(ETCD_DATA));
    command.args([
        "--listen-client-urls",
        &clients,
        "--advertise-client-urls",
        &clients,
    ]);
    command.args([
        "--listen-peer-urls",
        &peers,
        "--initial-advertise-peer-urls",
        &peers,
    ]);
    command
        .arg("--initial-cluster")
        .arg(format!("default={peers}"));
    command
}

fn server(assets: &Path, folder: &Path, ports: Ports) -> Command {
    let key = folder.join("accounts.key");
    let mut command = bound(&assets.join("kube-apiserver"));
    command.arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd));
    command.arg(format!("--secure-port={}", ports.server));
    command.args([
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
    ]);
    command.arg("--cert-dir").arg(folder.join("certificates"));
    command
        .arg("--token-auth-file")
        .arg(folder.join("tokens.csv"));
    command.args([
        "--authorization-mode=Node,RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged",
    ]);
    // This plugin waits for the secret of a service account, which no controller creates here.
    command.args([
        "--disable-admission-plugins=ServiceAccount",
        "--enable-admission-plugins=NodeRestriction",
    ]);
    command.arg("--service-account-issuer=https://kubernetes.default.svc");
    command
        .arg("--service-account-key-file")
        .arg(&key)
        .arg("--service-account-signing-key-file")
        .arg(&key);
    command
        .arg("--audit-log-path")
        .arg(folder.join("audit.jsonl"));
    command
        .arg("--audit-policy-file")
        .arg(folder.join("audit-policy.json"));
    command
}
