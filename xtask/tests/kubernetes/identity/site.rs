//! Proxies and agents of a bare API server's cluster, all on this host's loopback, and what kubelet would do for the agents' pods:
//! mount the ConfigMap, and write their tokens.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::kube::apiserver::ApiServer;
use xtask::lab::process::Process;
use xtask::self_signed::{AUTHORITY, SelfSigned};
use xtask::{wait, workspace};

use crate::ports::proxy::{DEADLINE, apply, get, node};

/// A stream answers at once; two busy cores may not.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes what the tests have in common: two edge nodes, a cloud node, and the agents' account with one of each other kind.
pub(crate) fn furnish(server: &ApiServer) -> Result<()> {
    for (name, address) in [("edge-1", "10.0.3.7"), ("edge-2", "10.0.3.8")] {
        node(server, name, address, &json!({"culvert.dev/edge": ""}))?;
    }
    node(server, "master", "192.0.2.10", &json!({}))?;
    for (namespace, name) in
        [("culvert-system", "culvert-agent"), ("culvert-system", "default"), ("default", "culvert-agent")]
    {
        apply(
            server,
            &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": name}}),
        )?;
    }
    Ok(())
}

/// A pod as the scheduler left it. Nobody runs it.
pub(crate) fn pod(server: &ApiServer, namespace: &str, name: &str, account: &str, on: &str) -> Result<String> {
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name},
            "spec": {"nodeName": on, "serviceAccountName": account, "automountServiceAccountToken": false,
                "containers": [{"name": "agent", "image": "culvert-agent"}]}}),
    )?;
    let pod = get(server, &["pod", "-n", namespace, name])?;
    Ok(pod["metadata"]["uid"].as_str().context("a pod has a UID")?.to_owned())
}

/// A token of a service account, as kubelet asks for it: bound to a pod by name and UID, or to none.
pub(crate) fn token(
    server: &ApiServer,
    namespace: &str,
    account: &str,
    audience: &str,
    pod: Option<(&str, &str)>,
) -> Result<String> {
    let bound = pod.map(|(name, uid)| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}));
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound}});
    let file = server.folder().join("token-request.json");
    fs::write(&file, request.to_string())?;
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let answer = workspace::output(server.kubectl().args(["create", "--raw", &path, "-f"]).arg(&file))?;
    let answer: Value = serde_json::from_str(&answer)?;
    Ok(answer["status"]["token"].as_str().context("no token")?.to_owned())
}

/// A token of an agent's pod on a node, which is made for it.
pub(crate) fn agent_token(server: &ApiServer, name: &str, on: &str) -> Result<String> {
    let uid = pod(server, "culvert-system", name, "culvert-agent", on)?;
    token(server, "culvert-system", "culvert-agent", "culvert", Some((name, &uid)))
}

/// A proxy that agents reach.
pub(crate) struct Proxy {
    pub(crate) process: Process,
    pub(crate) agents: SocketAddr,
    admin: SocketAddr,
    folder: PathBuf,
    command: Command,
    name: String,
    server: PathBuf,
}

impl Proxy {
    pub(crate) fn start(server: &ApiServer, name: &str, further: &[&str]) -> Result<Self> {
        let folder = server.folder().join(name);
        fs::create_dir_all(&folder)?;
        let (agents, admin) = (free_address()?, free_address()?);
        let mut command = program("culvert-proxy");
        command.arg("--kubeconfig").arg(server.kubeconfig()).arg("--state-dir").arg(folder.join("state"));
        for socket in ["connect", "directory", "control"] {
            command.arg(format!("--{socket}-socket")).arg(folder.join(format!("{socket}.sock")));
        }
        command.args(["--agent-listen", &agents.to_string(), "--admin-listen", &admin.to_string()]);
        command.args(["--intercept-listen", "127.0.0.1:0"]).args(further);
        let process = Process::start(name, server.folder(), &mut command)?;
        let (name, server) = (name.to_owned(), server.folder().to_owned());
        Ok(Self { process, agents, admin, folder, command, name, server })
    }

    /// Ends it well and starts it again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.terminate(DEADLINE)?;
        self.process = Process::start(&self.name, &self.server, &mut self.command)?;
        Ok(())
    }

    /// The authority as it has it on disk.
    pub(crate) fn authority(&self) -> Result<String> {
        fs::read_to_string(self.folder.join("state/cluster-authority.pem")).context("the authority on disk")
    }

    /// How often enrolments ended so.
    pub(crate) fn enrolments(&self, outcome: &str) -> Result<u64> {
        let metrics = http_get(self.admin, "/metrics")?;
        let line = metrics.lines().find(|line| {
            line.starts_with("culvert_proxy_enrolments_total{")
                && line.contains("request=\"join_account\"")
                && line.contains(&format!("outcome=\"{outcome}\""))
        });
        let count = line.and_then(|line| line.rsplit(' ').next()).unwrap_or("0");
        count.parse().with_context(|| metrics.clone())
    }

    /// What `culvert-proxy explain` says, whether a connection comes through or not.
    pub(crate) fn explain(&self, args: &[&str]) -> Result<String> {
        let mut command = program("culvert-proxy");
        command.arg("explain").args(args).arg("--control-socket").arg(self.folder.join("control.sock"));
        Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
    }

    /// A stream through HTTP CONNECT.
    pub(crate) fn stream(&self, target: &str) -> Result<UnixStream> {
        let mut stream = UnixStream::connect(self.folder.join("connect.sock")).context("the CONNECT socket")?;
        stream.set_read_timeout(Some(STREAM_TIMEOUT))?;
        write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).with_context(|| String::from_utf8_lossy(&head).into_owned())?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(stream)
    }

    /// Waits for a stream to an echo.
    pub(crate) fn wait_for_stream(&mut self, target: &str) -> Result<UnixStream> {
        wait::until(&format!("a stream to {target}"), DEADLINE, || {
            self.process.check()?;
            let mut stream = self.stream(target)?;
            echo(&mut stream)?;
            Ok(stream)
        })
    }
}

/// Sends some bytes and waits for them to come back.
pub(crate) fn echo(stream: &mut (impl Read + Write)) -> Result<()> {
    stream.write_all(b"still there?")?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).context("the stream's other end")?;
    ensure!(&answer == b"still there?", "{answer:?}");
    Ok(())
}

/// The pod of an agent: its process, the mounted ConfigMap, and the file of its token.
pub(crate) struct Agent {
    pub(crate) process: Process,
    admin: SocketAddr,
    folder: PathBuf,
    command: Command,
    name: String,
    server: PathBuf,
}

impl Agent {
    /// Starts one named `name` with this token; nothing is mounted yet.
    pub(crate) fn start(server: &ApiServer, name: &str, token: &str, backend: u16) -> Result<Self> {
        let folder = server.folder().join(name);
        fs::create_dir_all(folder.join("config"))?;
        fs::write(folder.join("token"), token)?;
        let admin = free_address()?;
        let mut command = program("culvert-agent");
        command.arg("--state-dir").arg(folder.join("state")).arg("--cluster-config").arg(folder.join("config"));
        command.arg("--service-account-token").arg(folder.join("token"));
        command.args(["--admin-listen", &admin.to_string(), "--localhost-port", &backend.to_string()]);
        let process = Process::start(name, server.folder(), &mut command)?;
        let (name, server) = (name.to_owned(), server.folder().to_owned());
        Ok(Self { process, admin, folder, command, name, server })
    }

    /// Mounts the ConfigMap as it is now, the way that kubelet does: a new folder behind a link that is swapped.
    pub(crate) fn mount(&self, server: &ApiServer) -> Result<()> {
        let found = get(server, &["configmap", "-n", "culvert-system", "culvert-agent"])?;
        let config = self.folder.join("config");
        let version = found["metadata"]["resourceVersion"].as_str().context("a version")?;
        let files = format!("..{version}");
        fs::create_dir_all(config.join(&files))?;
        for (name, text) in found["data"].as_object().context("no data")? {
            fs::write(config.join(&files).join(name), text.as_str().unwrap_or_default())?;
            let link = config.join(name);
            if !link.is_symlink() {
                std::os::unix::fs::symlink(format!("..data/{name}"), link)?;
            }
        }
        std::os::unix::fs::symlink(&files, config.join("..data_tmp"))?;
        fs::rename(config.join("..data_tmp"), config.join("..data"))?;
        Ok(())
    }

    /// Waits until the mounted ConfigMap says that, as kubelet brings changes sooner or later.
    pub(crate) fn mount_until(&self, server: &ApiServer, what: &str, holds: impl Fn(&str, &str) -> bool) -> Result<()> {
        wait::until(&format!("the mounted ConfigMap says {what}"), DEADLINE, || {
            self.mount(server)?;
            let read = |name: &str| fs::read_to_string(self.folder.join("config").join(name));
            let (ca, proxies) = (read("ca.crt")?, read("proxies")?);
            ensure!(holds(&ca, &proxies), "{proxies}\n{ca}");
            Ok(())
        })
    }

    /// Kubelet writes another token, or takes it away.
    pub(crate) fn set_token(&self, token: Option<&str>) -> Result<()> {
        let path = self.folder.join("token");
        match token {
            Some(token) => fs::write(path, token)?,
            None => fs::remove_file(path)?,
        }
        Ok(())
    }

    /// Ends it well and starts it again.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.terminate(DEADLINE)?;
        self.start_again()
    }

    /// Starts it again once it has ended.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(&self.name, &self.server, &mut self.command)?;
        Ok(())
    }

    /// What it has in its state directory of that name.
    pub(crate) fn state(&self, file: &str) -> PathBuf {
        self.folder.join("state").join(file)
    }

    /// Waits until its log has these words, all in one line, so many times.
    pub(crate) fn wait_for_log(&mut self, words: &[&str], times: usize) -> Result<()> {
        wait::until(&format!("{} says {words:?} {times} times", self.name), DEADLINE, || {
            self.process.check()?;
            let log = self.process.log();
            let found = log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
            ensure!(found >= times, "{log}");
            Ok(())
        })
    }

    /// Why it is not ready.
    pub(crate) fn missing(&self) -> Result<String> {
        http_get(self.admin, "/readyz")
    }
}

/// A program without what the environment says of proxies.
fn program(name: &str) -> Command {
    let mut command = Command::new(workspace::binary(name));
    for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(variable);
    }
    command
}

fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr()?)
}

fn http_get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(STREAM_TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Echoes on loopback as long as the test runs.
pub(crate) fn echo_backend() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            std::thread::spawn(move || {
                let mut writer = stream.try_clone()?;
                std::io::copy(&mut &stream, &mut writer)
            });
        }
    });
    Ok(port)
}

/// Makes an authority with openssl, as an operator would, and returns its certificate and key.
pub(crate) fn new_authority(folder: &Path) -> Result<(String, String)> {
    let SelfSigned { certificate, key } = SelfSigned::make(folder, "new-ca", "/CN=operator", AUTHORITY)?;
    Ok((fs::read_to_string(certificate)?, fs::read_to_string(key)?))
}
