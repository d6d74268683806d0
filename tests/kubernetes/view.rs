//! The read-only view of proxies, with a real API server: it says whose a token is and what RBAC
//! allows, and its proxy for pods is the way there. Nothing runs the pods here: the proxy is a process
//! of this host, whose address the pod's object has.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_address;
use culvert_lab::{wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{
    DEADLINE, apply, edge, node, proxies_kubeconfig, set_status, token, with_server,
};
use crate::proxy::Proxy;

const NAMESPACE: &str = "culvert-system";
const POD: &str = "culvert-proxy-1";
/// As `proxy/operators/src/view.rs` has it: sessions of one user.
const USER_SESSIONS: usize = 12;

#[test]
fn a_user_with_the_role_reads_without_exec_and_changes_nothing() {
    with_server(|server| {
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        edge(server, "edge-1", "192.0.2.71")?;
        wait::until("the node is listed", DEADLINE, || {
            let nodes = json_of(&reader.culvert(&["nodes"])?)?;
            ensure!(nodes["nodes"][0]["node"] == "edge-1", "{nodes:#}");
            Ok(())
        })?;
        let status = json_of(&reader.culvert(&["status"])?)?;
        let row = &status["proxies"][0];
        ensure!(
            row["error"].is_null() && row["version"].is_string(),
            "{status:#}"
        );
        // No redirector runs here, and that is no error.
        ensure!(row["steers"] == "-", "{status:#}");
        for words in [
            &["streams"][..],
            &["why", "edge-1"],
            &["node", "edge-1"],
            &["observe", "--last", "5"],
        ] {
            let asked = reader.culvert(words)?;
            let said = String::from_utf8_lossy(&asked.stderr);
            ensure!(!said.contains("forbidden"), "{words:?}: {asked:?}");
            let why = String::from_utf8_lossy(&asked.stdout);
            ensure!(!why.contains("view: "), "{words:?}: {asked:?}");
        }
        for words in [
            &["node", "remove", "edge-1"][..],
            &["token", "list"],
            &["token", "create", "edge-2"],
            &["connect", "edge-1:22"],
        ] {
            let asked = reader.culvert(words)?;
            ensure!(!asked.status.success(), "{words:?}: {asked:?}");
        }
        let nodes = json_of(&reader.culvert(&["nodes"])?)?;
        ensure!(nodes["nodes"][0]["node"] == "edge-1", "{nodes:#}");
        // It was not by exec, which this user may not.
        let may = ["auth", "can-i", "create", "pods/exec", "-n", NAMESPACE];
        let may = reader.kubectl(server).args(may).output()?;
        ensure!(!may.status.success(), "{may:?}");
        Ok(())
    });
}

#[test]
fn nobody_else_reads() {
    with_server(|server| {
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        let passer = site.account(server, "passer", Role::Way)?;
        // The way is not enough.
        let asked = json_of(&passer.culvert(&["status"])?)?;
        let row = &asked["proxies"][0];
        let error = row["error"].as_str().context("no error")?;
        ensure!(row["state"] == "no answer", "{row:#}");
        ensure!(error.contains("proxies.culvert.dev"), "{row:#}");
        // Whoever may exec can ask for the view too.
        let admin = Account {
            kubeconfig: server.kubeconfig(),
            token: String::new(),
        };
        let asked = json_of(&admin.culvert(&["status", "--view"])?)?;
        ensure!(asked["proxies"][0]["error"].is_null(), "{asked:#}");

        let other_audience = token(server, [NAMESPACE, "reader"], Some("culvert"), None)?;
        let own_audience = token(server, [NAMESPACE, "reader"], Some("culvert-view"), None)?;
        let passers = token(server, [NAMESPACE, "passer"], Some("culvert-view"), None)?;
        for (token, status) in [
            // Whoever may read is told how.
            (reader.token.as_str(), 426),
            (own_audience.as_str(), 426),
            (passer.token.as_str(), 403),
            (passers.as_str(), 403),
            (other_audience.as_str(), 401),
            ("a.b.c", 401),
            ("", 401),
        ] {
            ensure!(site.ask(token)? == status, "{status}: {}", site.ask(token)?);
        }
        // A permission that is withdrawn ends.
        let binding = ["delete", "rolebinding", "reader", "-n", NAMESPACE];
        workspace::output(server.kubectl().args(binding))?;
        wait::until("the permission has ended", DEADLINE, || {
            let status = site.ask(&own_audience)?;
            ensure!(status == 403, "{status}");
            Ok(())
        })
    });
}

#[test]
fn one_who_asks_too_much_is_refused_and_others_are_not() {
    with_server(|server| {
        let site = Site::start(server)?;
        let greedy = site.account(server, "greedy", Role::View)?;
        let other = site.account(server, "other", Role::View)?;
        let mut observers = Vec::new();
        wait::until("the user has all connections", DEADLINE, || {
            // One that was late on a busy machine has ended.
            observers.retain_mut(Observer::is_running);
            while observers.len() < USER_SESSIONS {
                observers.push(greedy.observe()?);
            }
            let asked = greedy.culvert(&["streams"])?;
            let said = String::from_utf8_lossy(&asked.stderr);
            ensure!(said.contains("close some"), "{asked:?}");
            Ok(())
        })?;
        let streams = json_of(&other.culvert(&["streams"])?)?;
        ensure!(streams["unanswered"] == json!([]), "{streams:#}");
        drop(observers);
        wait::until("the user is served again", DEADLINE, || {
            let streams = json_of(&greedy.culvert(&["streams"])?)?;
            ensure!(streams["unanswered"] == json!([]), "{streams:#}");
            Ok(())
        })?;
        // Guesses cost the API server a few questions.
        wait::until("an address that guesses has to wait", DEADLINE, || {
            let status = site.ask("a.b.c")?;
            ensure!(status == 429, "{status}");
            Ok(())
        })
    });
}

#[test]
fn the_view_needs_a_cluster() {
    let mut proxy = Command::new(workspace::binary("culvert-proxy"));
    let refused = proxy.args(["--view-listen", "127.0.0.1:0"]).output();
    let refused = refused.expect("run it");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("--kubernetes"),
        "{said}"
    );
}

/// A proxy with a view, and its pod's object.
struct Site {
    _proxy: Proxy,
    view: SocketAddr,
}

/// What a service account may.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The Role of the manifests.
    View,
    /// The way to the proxy only.
    Way,
}

/// A user.
struct Account {
    kubeconfig: PathBuf,
    token: String,
}

/// A `culvert observe --follow`, which ends with this.
struct Observer(Child);

impl Observer {
    fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Site {
    fn start(server: &ApiServer) -> Result<Self> {
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
        let proxy = Proxy::start_as(server, &kubeconfig, "cloud-1", &flags)?;
        node(server, "cloud-1", &view.ip().to_string(), &json!({}))?;
        pod(server, view)?;
        let site = Self {
            _proxy: proxy,
            view,
        };
        wait::until("the view answers", DEADLINE, || site.ask("").map(drop))?;
        Ok(site)
    }

    /// The status of a request with this token, which reaches the proxy directly.
    fn ask(&self, token: &str) -> Result<u16> {
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

    fn account(&self, server: &ApiServer, name: &str, role: Role) -> Result<Account> {
        let metadata = json!({"namespace": NAMESPACE, "name": name});
        apply(
            server,
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        )?;
        let bound = match role {
            Role::View => "culvert-view",
            Role::Way => {
                let rules = json!([
                    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
                    {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}]);
                apply(
                    server,
                    &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                        "metadata": {"namespace": NAMESPACE, "name": "way"}, "rules": rules}),
                )?;
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

impl Account {
    fn culvert(&self, words: &[&str]) -> Result<Output> {
        let mut command = self.command(words);
        command.args(["--output", "json", "--timeout", "30s"]);
        Ok(command.output()?)
    }

    fn observe(&self) -> Result<Observer> {
        let mut command = self.command(&["observe", "--follow", "--timeout", "30s"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Observer(command.spawn()?))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(workspace::binary("culvert"));
        command
            .args(words)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig);
        command
    }

    fn kubectl(&self, server: &ApiServer) -> Command {
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

fn json_of(output: &Output) -> Result<Value> {
    serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))
}
