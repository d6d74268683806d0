//! A proxy with a view, and users of it.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_address;
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, apply, node, proxies_kubeconfig, set_status, token};
use crate::proxy::Proxy;

pub(crate) const NAMESPACE: &str = "culvert-system";
const POD: &str = "culvert-proxy-1";

/// A proxy with a view, and its pod's object.
pub(crate) struct Site {
    pub(crate) proxy: Proxy,
    view: SocketAddr,
}

/// What a service account may.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The Role of the manifests to read.
    View,
    /// That to connect.
    Connect,
    /// The same for edge-2 alone.
    ConnectEdge2,
    /// The way to the proxy only.
    Way,
}

/// A user.
pub(crate) struct Account {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) token: String,
}

/// A `culvert` that runs until it is interrupted. It ends with this.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Site {
    pub(crate) fn start(server: &ApiServer) -> Result<Self> {
        Self::start_with(server, &[])
    }

    /// With further flags.
    pub(crate) fn start_with(server: &ApiServer, further: &[&str]) -> Result<Self> {
        // The API server's proxy dials no loopback address.
        let view = SocketAddr::new(own_address()?.ip(), free_address()?.port());
        let kubeconfig = proxies_kubeconfig(server)?;
        let rbac = workspace::root().join("deploy/components/view/rbac.yaml");
        workspace::output(server.kubectl().args(["apply", "-f"]).arg(rbac))?;
        let flags = [
            "--service-range=10.96.0.0/16",
            "--pod-range=10.244.0.0/16",
            &format!("--view-listen={view}"),
            "--redirector-admin-socket=/nowhere/admin.sock",
        ];
        let flags = [&flags[..], further].concat();
        let proxy = Proxy::start_as(server, &kubeconfig, "cloud-1", &flags)?;
        node(server, "cloud-1", &view.ip().to_string(), &json!({}))?;
        pod(server, view)?;
        let site = Self { proxy, view };
        wait::until("the view answers", DEADLINE, || site.ask("").map(drop))?;
        Ok(site)
    }

    /// The status of a request with this token, which reaches the proxy directly.
    pub(crate) fn ask(&self, token: &str) -> Result<u16> {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--insecure",
            "--max-time",
            "30",
            "--output",
            "/dev/null",
        ]);
        curl.args(["--write-out", "%{http_code}", "--header"]);
        curl.arg(format!("Authorization: Bearer {token}"));
        let said = workspace::output(curl.arg(format!("https://{}/view/control", self.view)))?;
        Ok(said.trim().parse()?)
    }

    pub(crate) fn account(&self, server: &ApiServer, name: &str, role: Role) -> Result<Account> {
        let metadata = json!({"namespace": NAMESPACE, "name": name});
        apply(
            server,
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        )?;
        let bound = match role {
            Role::View => "culvert-view",
            Role::Connect => "culvert-connect",
            Role::ConnectEdge2 => {
                make_role(server, "edge-2", &["edge-2"])?;
                "edge-2"
            }
            Role::Way => {
                make_role(server, "way", &[])?;
                "way"
            }
        };
        let binding = ["create", "rolebinding", name, "-n", NAMESPACE];
        let mut create = server.kubectl();
        create.args(binding).args(["--role", bound]);
        create.arg(format!("--serviceaccount={NAMESPACE}:{name}"));
        workspace::output(&mut create)?;
        let token = token(server, [NAMESPACE, name], None, None)?;
        let kubeconfig = server.kubeconfig_of(name, &token)?;
        Ok(Account { kubeconfig, token })
    }
}

/// A Role with the way to the proxies, and if nodes are named, the rights to read and to connect with
/// these.
fn make_role(server: &ApiServer, name: &str, nodes: &[&str]) -> Result<()> {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}),
        json!({"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}),
    ];
    if !nodes.is_empty() {
        rules.push(
            json!({"apiGroups": ["culvert.dev"], "resources": ["proxies"],
            "verbs": ["get"]}),
        );
        rules.push(
            json!({"apiGroups": ["culvert.dev"], "resources": ["connections"],
            "resourceNames": nodes, "verbs": ["create"]}),
        );
    }
    apply(
        server,
        &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"namespace": NAMESPACE, "name": name}, "rules": rules}),
    )
}

/// Takes a user's Role away.
pub(crate) fn unbind(server: &ApiServer, name: &str) -> Result<()> {
    let binding = ["delete", "rolebinding", name, "-n", NAMESPACE];
    workspace::output(server.kubectl().args(binding)).map(drop)
}

impl Account {
    pub(crate) fn culvert(&self, words: &[&str]) -> Result<Output> {
        let mut command = self.command(words);
        command.args(["--output", "json", "--timeout", "30s"]);
        Ok(command.output()?)
    }

    pub(crate) fn observe(&self) -> Result<Running> {
        let mut command = self.command(&["observe", "--follow", "--timeout", "30s"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Running(command.spawn()?))
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(workspace::binary("culvert"));
        command
            .args(words)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig);
        command
    }

    pub(crate) fn kubectl(&self, server: &ApiServer) -> Command {
        let mut kubectl = server.kubectl();
        kubectl.env("KUBECONFIG", Path::new(&self.kubeconfig));
        kubectl
    }
}

/// The proxy's pod, as its DaemonSet and its kubelet leave it.
fn pod(server: &ApiServer, view: SocketAddr) -> Result<()> {
    let container = json!({"name": "culvert-proxy", "image": "culvert-proxy",
        "ports": [{"name": "view", "containerPort": view.port()}]});
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": NAMESPACE, "name": POD,
                "labels": {"app.kubernetes.io/name": "culvert-proxy"}},
            "spec": {"nodeName": "cloud-1", "hostNetwork": true, "serviceAccountName": "culvert-proxy",
                "automountServiceAccountToken": false, "containers": [container]}}),
    )?;
    let address = view.ip().to_string();
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]});
    set_status(
        server,
        &format!("/api/v1/namespaces/{NAMESPACE}/pods/{POD}"),
        &status,
    )
}

/// An address of this host by which others would reach it. Nothing is sent.
fn own_address() -> Result<SocketAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket
        .connect("203.0.113.1:9")
        .context("this host has no route")?;
    Ok(socket.local_addr()?)
}

pub(crate) fn json_of(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))
}
