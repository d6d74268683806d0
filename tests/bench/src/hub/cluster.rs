//! A real API server with the objects that a node reads, and the node's identity in it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::process::{Process, bound};
use culvert_lab::progress::Step;
use culvert_lab::self_signed::SelfSigned;
use culvert_lab::{ports, workspace};
use serde_json::{Value, json};

use super::sandbox::{CUT_ADDRESS, Sandbox};
use crate::load::Load;

/// The node's pods, a list that a hub starts with, and the services of a large cluster.
pub(super) const PODS: &str = "/api/v1/namespaces/bench/pods";
pub(super) const POD: &str = "/api/v1/namespaces/bench/pods/pods-50";
pub(super) const THOUSAND: &str = "/api/v1/namespaces/thousand/services";
pub(super) const MANY_SERVICES: &str = "/api/v1/namespaces/many/services";

/// Nothing is logged of each request.
const NO_AUDIT: &str =
    r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "None"}]}"#;
/// The node that asks.
pub(super) const NODE_NAME: &str = "edge-1";
const NODE: &str = "system:node:edge-1";

/// Milliseconds there and back over the long link.
const ROUND_TRIP: u16 = 20;
/// Bytes under way over it, each way.
const WINDOW: u32 = 1 << 20;

/// Targets of the load that are the API server itself.
#[derive(Clone)]
pub(super) struct Direct {
    pub(super) near: PathBuf,
    pub(super) far: PathBuf,
}

/// The running API server.
pub(super) struct Cluster {
    server: ApiServer,
    /// The node's own kubeconfig.
    kubeconfig: PathBuf,
    /// The node's certificate.
    pub(super) node: SelfSigned,
    /// An administrator, by the address that is never cut.
    pub(super) writer: PathBuf,
    /// The node, without anything in between: by HTTP/1.1 and HTTP/2, near and over the long link.
    pub(super) direct: Direct,
    pub(super) direct_http2: Direct,
    /// The node's own kubeconfig over the long link.
    far_kubeconfig: PathBuf,
    _link: Process,
    slices: &'static str,
}

/// What files with the targets of direct clients say.
struct Targets<'a> {
    folder: &'a Path,
    authority: &'a Path,
    node: &'a SelfSigned,
    near: &'a str,
    far: &'a str,
}

impl Targets<'_> {
    fn write_kubeconfig(&self, name: &str, address: &str) -> Result<PathBuf> {
        let path = self.folder.join(format!("{name}.kubeconfig"));
        let content = kubeconfig_of(address, self.authority, self.node);
        std::fs::write(&path, content.to_string())?;
        Ok(path)
    }

    fn write(&self, name: &str, is_http2: bool) -> Result<Direct> {
        Ok(Direct {
            near: self.write_one(&format!("{name}-near"), self.near, is_http2)?,
            far: self.write_one(&format!("{name}-far"), self.far, is_http2)?,
        })
    }

    fn write_one(&self, name: &str, address: &str, is_http2: bool) -> Result<PathBuf> {
        write_target(
            &self.folder.join(format!("{name}.json")),
            &json!({
                "address": address,
                "authority": self.authority,
                "certificate": self.node.certificate,
                "key": self.node.key,
                "http2": is_http2,
            }),
        )
    }
}

impl Cluster {
    /// Starts it and makes the objects.
    pub(super) fn start(
        assets: &Path,
        programs: &Path,
        sandbox: &Sandbox,
        load: &mut Load,
    ) -> Result<Self> {
        let step = Step::start("start an API server");
        let folder = sandbox.folder("cluster")?;
        let policy = folder.join("audit-policy.json");
        std::fs::write(&policy, NO_AUDIT)?;
        let node = SelfSigned::make(
            &folder,
            "node",
            &format!("/O=system:nodes/CN={NODE}"),
            "extendedKeyUsage=clientAuth",
        )?;
        let flags = [
            "--bind-address=0.0.0.0".to_owned(),
            format!("--client-ca-file={}", node.certificate.display()),
            format!("--audit-policy-file={}", policy.display()),
        ];
        let server = ApiServer::start(assets, &flags.each_ref().map(String::as_str))?;
        step.done();
        let authority = server.folder().join("certificates/apiserver.crt");
        let local = format!("127.0.0.1:{}", server.port());
        let cut = format!("{CUT_ADDRESS}:{}", server.port());
        let writer = write_target(
            &folder.join("writer.json"),
            &json!({ "address": local, "authority": authority, "token": token_of(&server)? }),
        )?;
        let (link, far) = start_link(programs, &cut)?;
        let targets = Targets {
            folder: &folder,
            authority: &authority,
            node: &node,
            near: &cut,
            far: &far,
        };
        let direct = targets.write("direct", false)?;
        let direct_http2 = targets.write("direct-http2", true)?;
        let kubeconfig = targets.write_kubeconfig("node", &cut)?;
        let far_kubeconfig = targets.write_kubeconfig("far", &far)?;
        let slices = if server.minor_version()? < 21 {
            "/apis/discovery.k8s.io/v1beta1/namespaces/many/endpointslices"
        } else {
            "/apis/discovery.k8s.io/v1/namespaces/many/endpointslices"
        };
        let cluster = Self {
            server,
            kubeconfig,
            node,
            writer,
            direct,
            direct_http2,
            far_kubeconfig,
            slices,
            _link: link,
        };
        cluster.make_objects(load)?;
        Ok(cluster)
    }

    /// The list of the slices of a large cluster.
    pub(super) fn slices(&self) -> &'static str {
        self.slices
    }

    /// What is cut.
    pub(super) fn cut_address(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(CUT_ADDRESS.parse()?, self.server.port()))
    }

    /// What is cut, as a URL.
    pub(super) fn url(&self) -> Result<String> {
        Ok(format!("https://{}", self.cut_address()?))
    }

    /// The authority of the API server's certificate.
    pub(super) fn authority(&self) -> PathBuf {
        self.server.folder().join("certificates/apiserver.crt")
    }

    /// A copy of the node's kubeconfig, which `install` may change.
    pub(super) fn copy_kubeconfig(&self, to: &Path) -> Result<PathBuf> {
        copy(&self.kubeconfig, to)
    }

    /// The same over the long link.
    pub(super) fn copy_far_kubeconfig(&self, to: &Path) -> Result<PathBuf> {
        copy(&self.far_kubeconfig, to)
    }

    /// Lets the node read and write what YurtHub does besides.
    pub(super) fn allow_everything(&self) -> Result<()> {
        let user = format!("--user={NODE}");
        let role = "--clusterrole=cluster-admin";
        self.kubectl(&["create", "clusterrolebinding", "bench-all", role, &user])?;
        self.kubectl(&[
            "create",
            "--namespace=kube-system",
            "configmap",
            "yurt-hub-cfg",
            "--from-literal=cache_agents=*",
        ])
    }

    fn make_objects(&self, load: &mut Load) -> Result<()> {
        let step = Step::start("make 100 pods, 6,000 services and 5,000 slices");
        for namespace in ["bench", "thousand", "many"] {
            self.kubectl(&["create", "namespace", namespace])?;
        }
        self.kubectl(&[
            "create",
            "clusterrole",
            "bench",
            "--verb=get,list,watch",
            "--resource=pods,services,endpointslices.discovery.k8s.io",
        ])?;
        let user = format!("--user={NODE}");
        self.kubectl(&[
            "create",
            "clusterrolebinding",
            "bench",
            "--clusterrole=bench",
            &user,
        ])?;
        let writer = self.writer.display();
        for (path, count) in [
            (PODS, 100),
            (THOUSAND, 1_000),
            (MANY_SERVICES, 5_000),
            (self.slices, 5_000),
        ] {
            load.run(&format!("create {writer} {path} {count}"))?;
        }
        step.done();
        Ok(())
    }

    fn kubectl(&self, args: &[&str]) -> Result<()> {
        workspace::output(self.server.kubectl().args(args)).map(drop)
    }
}

fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    std::fs::copy(from, to).with_context(|| format!("write {}", to.display()))?;
    Ok(to.to_owned())
}

/// Starts a long link to an address; returns where it begins.
fn start_link(programs: &Path, to: &str) -> Result<(Process, String)> {
    let listen = ports::free_address()?.to_string();
    let mut command = bound(&programs.join("culvert-bench"));
    command.args(["delay", "--listen", &listen, "--to", to]);
    command.args(["--round-trip", &ROUND_TRIP.to_string()]);
    command.args(["--window", &WINDOW.to_string()]);
    let logs = workspace::target_dir().join("bench-hub");
    Ok((Process::start("link", &logs, &mut command)?, listen))
}

/// Writes a target for the load.
pub(super) fn write_target(path: &Path, target: &Value) -> Result<PathBuf> {
    std::fs::write(path, target.to_string())
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path.to_owned())
}

/// The administrator's token.
fn token_of(server: &ApiServer) -> Result<String> {
    let kubeconfig: Value = serde_json::from_slice(&std::fs::read(server.kubeconfig())?)?;
    let token = kubeconfig["users"][0]["user"]["token"].as_str();
    Ok(token
        .context("an administrator without a token")?
        .to_owned())
}

fn kubeconfig_of(address: &str, authority: &Path, node: &SelfSigned) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {
            "server": format!("https://{address}"), "certificate-authority": authority}}],
        "users": [{"name": NODE, "user": {
            "client-certificate": node.certificate, "client-key": node.key}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": NODE}}],
    })
}
