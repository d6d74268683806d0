//! Proxies of a cluster, by exec in their pods. The proxy's container reaches the sockets of all
//! programs of its host, which share the folder /run/culvert. Users who may not exec get the proxy's
//! view.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use culvert_api::NodeName;
use culvert_kubeconfig::{ForwardProxy, Source, Unusable};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, AttachedProcess, ListParams};
use kube::config::{Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::cluster_texts::{self, ClusterText};
use super::user::KubeUser;
use super::view::{ViewAccess, ViewError, ViewTarget, view_port};
use super::{Connection, Finished, NoAnswer, NodeWay, ProxyToAsk, Socket};
use crate::args::Whom;

/// As the manifests have it.
const SELECTOR: &str = "app.kubernetes.io/name=culvert-proxy";
const CONTAINER: &str = "culvert-proxy";
/// The API server's answer if there is no such pod.
const NOT_FOUND: u16 = 404;
/// Its answer if the user may not exec there.
const FORBIDDEN: u16 = 403;
/// Its answer to a user whom it does not know.
const UNAUTHORIZED: u16 = 401;
/// The most pods that are asked.
const MAX_PODS: u32 = 100;
/// Bytes on their way in one direction.
const BUFFER: usize = 64 << 10;

/// A proxy's pod.
pub(super) struct ProxyPod {
    pods: Api<Pod>,
    namespace: String,
    /// Another one after a rollout.
    name: Mutex<String>,
    /// The Node.
    pub(super) host: String,
    user: KubeUser,
    view: ViewAccess,
    view_port: Option<u16>,
    access: Mutex<PodAccess>,
}

/// How its sockets are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodAccess {
    /// Through exec, until the API server forbids that.
    Exec,
    /// Through the view.
    View,
}

/// A connection, and how it was made.
enum Opened {
    Exec(Connection),
    View(Connection),
}

/// The standard input of a command in a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Input {
    Open,
    None,
}

/// Whether there is a kubeconfig where kubectl looks for one.
pub(super) fn has_kubeconfig() -> bool {
    Kubeconfig::read().is_ok()
}

/// The context of the kubeconfig that is used if none is named.
pub(super) fn current_context(whom: &Whom) -> Option<String> {
    let kubeconfig = match &whom.kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    kubeconfig.ok()?.current_context
}

impl fmt::Debug for ProxyPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyPod")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl ProxyPod {
    /// The pods of all proxies.
    ///
    /// # Errors
    /// The kubeconfig is wrong, the API server does not answer in time, or there is no pod.
    pub(super) async fn list(whom: &Whom) -> Result<Vec<Self>> {
        let Access {
            client,
            config,
            left_out,
        } = access(whom).await?;
        let server = config.cluster_url.host().unwrap_or_default().to_owned();
        let view = ViewAccess::new(config)?;
        let user = KubeUser::of(client.clone());
        let pod_access = if whom.view {
            PodAccess::View
        } else {
            PodAccess::Exec
        };
        let pods: Api<Pod> = Api::namespaced(client, &whom.namespace);
        let all = ListParams::default().labels(SELECTOR).limit(MAX_PODS);
        let listed = timeout(whom.timeout, pods.list(&all)).await;
        let listed = match listed {
            Ok(listed) => listed.map_err(said_by_api_server),
            Err(_elapsed) => Err(anyhow!("no answer within {} s", whom.timeout.as_secs())),
        };
        let listed = listed.with_context(|| {
            format!(
                "list the proxies' pods in namespace {} at the API server {server}{}",
                whom.namespace,
                advice(left_out)
            )
        })?;
        let mut found = Vec::new();
        for pod in listed.items {
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let view_port = view_port(&pod);
            let name = pod.metadata.name.unwrap_or_default();
            let node = pod.spec.and_then(|spec| spec.node_name);
            found.push(Self {
                pods: pods.clone(),
                namespace: whom.namespace.clone(),
                host: node.unwrap_or_else(|| name.clone()),
                name: Mutex::new(name),
                user: user.clone(),
                view: view.clone(),
                view_port,
                access: Mutex::new(pod_access),
            });
        }
        ensure!(
            !found.is_empty(),
            "no pod in namespace {} has the label {SELECTOR}: --namespace names another one",
            whom.namespace
        );
        found.sort_by(|one, other| one.host.cmp(&other.host));
        Ok(found)
    }

    pub(super) async fn connect(&self, socket: Socket) -> Result<Connection, NoAnswer> {
        match self.connect_by(socket, ViewTarget::Socket(socket)).await? {
            Opened::Exec(connection) | Opened::View(connection) => Ok(connection),
        }
    }

    /// Connects with a port of a node.
    pub(super) async fn connect_node(
        &self,
        node: &NodeName,
        port: u16,
    ) -> Result<NodeWay, NoAnswer> {
        let target = ViewTarget::Node(node, port);
        Ok(match self.connect_by(Socket::Connect, target).await? {
            Opened::Exec(connection) => NodeWay {
                connection,
                proxy: Some(ProxyToAsk {
                    user: self.user.name().await,
                }),
            },
            Opened::View(connection) => NodeWay {
                connection,
                proxy: None,
            },
        })
    }

    /// Whether it is reached by the view. This may be known after a question only.
    pub(super) fn is_by_view(&self) -> bool {
        *self.access.lock() == PodAccess::View
    }

    /// Connects with the socket by exec, or where that is forbidden with the target by the view.
    async fn connect_by(&self, socket: Socket, target: ViewTarget<'_>) -> Result<Opened, NoAnswer> {
        if self.is_by_view() {
            return Ok(Opened::View(self.connect_view(target).await?));
        }
        let forbidden = match self.connect_exec(socket).await {
            Err(error) if is_forbidden(&error) => error,
            connected => return Ok(Opened::Exec(connected?)),
        };
        match self.connect_view(target).await {
            Ok(connection) => {
                *self.access.lock() = PodAccess::View;
                Ok(Opened::View(connection))
            }
            Err(unanswered) => Err(NoAnswer {
                text: format!("{forbidden:#}; {}", unanswered.text),
                ..unanswered
            }),
        }
    }

    async fn connect_exec(&self, socket: Socket) -> Result<Connection> {
        let mut process = self.exec(&socket.command(), Input::Open).await?;
        let parts = (process.stdout(), process.stdin(), process.stderr());
        let (Some(out), Some(input), Some(errors)) = parts else {
            bail!("exec has no standard streams");
        };
        let stream = tokio::io::join(out, input);
        Ok(Connection::through(process, stream, errors))
    }

    async fn connect_view(&self, target: ViewTarget<'_>) -> Result<Connection, NoAnswer> {
        match self.connect_view_of(&self.name(), target).await {
            Err(error) if error.is_absent_pod() => {}
            connected => return Ok(connected?),
        }
        let name = self.successor().await?;
        let connection = self.connect_view_of(&name, target).await?;
        *self.name.lock() = name;
        Ok(connection)
    }

    async fn connect_view_of(
        &self,
        name: &str,
        target: ViewTarget<'_>,
    ) -> Result<Connection, ViewError> {
        let pod = [self.namespace.as_str(), name];
        self.view.connect(pod, self.view_port, target).await
    }

    pub(super) async fn run(&self, words: &[String]) -> Result<Finished, NoAnswer> {
        Ok(self.finished(words).await?)
    }

    /// The texts of all pods of its namespace.
    pub(super) async fn cluster_texts(&self, deadline: Duration) -> Vec<ClusterText> {
        let client = self.pods.clone().into_client();
        cluster_texts::read(&client, &self.namespace, deadline).await
    }

    async fn finished(&self, words: &[String]) -> Result<Finished> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut process = self.exec(&words, Input::None).await?;
        let mut out = process.stdout().context("no output")?;
        let mut errors = process.stderr().context("no error output")?;
        let mut said = String::new();
        let mut complained = String::new();
        let both = tokio::join!(
            out.read_to_string(&mut said),
            errors.read_to_string(&mut complained)
        );
        both.0.and(both.1).context("read what it prints")?;
        Ok(Finished {
            out: said,
            err: complained,
        })
    }

    async fn exec(&self, words: &[&str], input: Input) -> Result<AttachedProcess> {
        let name = self.name();
        match self.exec_in(&name, words, input).await {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {}
            done => return done.with_context(|| format!("exec in pod {name}")),
        }
        let name = self.successor().await?;
        let done = self.exec_in(&name, words, input).await;
        let process = done.with_context(|| format!("exec in pod {name}"))?;
        *self.name.lock() = name;
        Ok(process)
    }

    fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// The pod that a rollout has put in the place of this one.
    async fn successor(&self) -> Result<String> {
        let node = format!("spec.nodeName={}", self.host);
        let wanted = ListParams::default().labels(SELECTOR).fields(&node);
        let listed = self.pods.list(&wanted.limit(MAX_PODS)).await;
        let listed = listed.context("list the proxies' pods again")?;
        let mut found = None;
        for pod in listed.items {
            let phase = pod.status.and_then(|status| status.phase);
            let is_running = phase.is_some_and(|phase| phase == "Running");
            if pod.metadata.deletion_timestamp.is_none() && (found.is_none() || is_running) {
                found = pod.metadata.name;
            }
        }
        found.with_context(|| format!("node {} has no proxy's pod any more", self.host))
    }

    async fn exec_in(
        &self,
        name: &str,
        words: &[&str],
        input: Input,
    ) -> kube::Result<AttachedProcess> {
        let how = AttachParams::default()
            .container(CONTAINER)
            .stdin(input == Input::Open)
            .stdout(true)
            .stderr(true)
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(BUFFER);
        self.pods.exec(name, words.to_vec(), &how).await
    }
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<kube::Error>();
    matches!(error, Some(kube::Error::Api(status)) if status.code == FORBIDDEN)
}

/// A client, its settings, and the forward proxy that it does not use.
pub(super) struct Access {
    pub(super) client: Client,
    config: Config,
    left_out: Option<ForwardProxy>,
}

/// The API server that the flags name.
pub(super) async fn access(whom: &Whom) -> Result<Access> {
    let source = match &whom.kubeconfig {
        Some(file) => Source::File(file),
        None => Source::Kubectl,
    };
    let loaded = culvert_kubeconfig::load(source, whom.context.as_deref()).await;
    let loaded = loaded.map_err(|error| {
        let fix = kubeconfig_fix(&error);
        let file = match &whom.kubeconfig {
            Some(file) => format!("the kubeconfig {}", file.display()),
            None => "kubectl's kubeconfig".to_owned(),
        };
        anyhow::Error::new(error).context(format!("use {file}{fix}"))
    })?;
    let client = Client::try_from(loaded.config.clone()).context("use the kubeconfig")?;
    Ok(Access {
        client,
        config: loaded.config,
        left_out: loaded.left_out,
    })
}

/// What to do about a kubeconfig, if its error does not say it.
fn kubeconfig_fix(error: &Unusable) -> &'static str {
    match error {
        Unusable::Other(
            KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_),
        ) => " (`kubectl config get-contexts` lists what --context may name)",
        Unusable::Other(_) | Unusable::Parse { .. } => "",
    }
}

/// An error without the fields of the answer, which its own text has too.
fn said_by_api_server(error: kube::Error) -> anyhow::Error {
    if let kube::Error::SerdeError(_) = error {
        return anyhow!(
            "the answer is not one of an API server: does `server` of the kubeconfig lead to one?"
        );
    }
    let kube::Error::Api(status) = error else {
        return error.into();
    };
    let message = &status.message;
    if status.code == UNAUTHORIZED {
        return anyhow!(
            "{message}: the credentials of the kubeconfig have expired, or are of another cluster: log \
             in to the cluster again"
        );
    }
    anyhow!("{message}")
}

/// For the error of a request that had no answer.
fn advice(left_out: Option<ForwardProxy>) -> &'static str {
    match left_out {
        Some(ForwardProxy::Kubeconfig) => {
            "; the API server was dialled directly, not through proxy-url of the kubeconfig: --ssh \
             needs no API server"
        }
        Some(ForwardProxy::Environment) => {
            "; the API server was dialled directly, not through HTTPS_PROXY: --ssh needs no API \
             server"
        }
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server after a rollout: no pod takes a command, and node `cloud-1` has a new one.
    fn answer(request: &Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        let (code, object) = if path.ends_with("/exec") {
            let text = "pods not found";
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": text, "reason": "NotFound", "code": 404});
            (404, status)
        } else {
            let pod = |name: &str, phase: &str| {
                json!({"metadata": {"name": name}, "spec": {"nodeName": "cloud-1", "containers": []},
                    "status": {"phase": phase}})
            };
            let items = [
                pod("ended", "Failed"),
                pod("new", "Running"),
                pod("later", "Pending"),
            ];
            (
                200,
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}),
            )
        };
        let answer = Response::builder().status(code);
        let body = Body::from(object.to_string().into_bytes());
        answer.body(body).expect("an answer")
    }

    #[test]
    fn an_answer_of_the_api_server_is_told_by_its_message_and_an_expired_token_with_the_fix() {
        let answer = |code: u16| {
            let status = json!({"message": "no", "reason": "Reason", "code": code});
            let status = serde_json::from_value(status).expect("a status");
            said_by_api_server(kube::Error::Api(status)).to_string()
        };
        assert_eq!(answer(FORBIDDEN), "no");
        let expired = answer(UNAUTHORIZED);
        assert!(expired.contains("log in"), "{expired}");
        assert!(!expired.contains("Reason"), "{expired}");
    }

    #[tokio::test]
    async fn after_a_rollout_the_new_pod_of_the_node_is_asked() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let uri = request.uri().to_string();
            log.lock().push(uri);
            let answer = answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let client = Client::new(service, "culvert-system");
        let nowhere = Config::new("https://127.0.0.1:1".parse().expect("an address"));
        let pod = ProxyPod {
            user: KubeUser::of(client.clone()),
            pods: Api::namespaced(client, "culvert-system"),
            namespace: "culvert-system".to_owned(),
            name: Mutex::new("old".to_owned()),
            host: "cloud-1".to_owned(),
            view: ViewAccess::new(nowhere).expect("settings"),
            view_port: None,
            access: Mutex::new(PodAccess::Exec),
        };
        let failed = pod.connect(Socket::Control).await;
        failed.expect_err("no pod takes a command");
        let asked = asked.lock();
        let [first, list, second] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        assert!(first.contains("/pods/old/exec"), "{first}");
        assert!(list.contains("cloud-1"), "{list}");
        assert!(second.contains("/pods/new/exec"), "{second}");
    }
}
