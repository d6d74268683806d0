//! Where programs of Culvert are, and how their sockets are reached: on this host, by ssh, or in a
//! pod. On another host `culvert-proxy control-stdio` passes the bytes on, so that nothing listens
//! for this. Only the view of a cluster's proxies is a port, which they open if they are told to.

mod child_input;
mod cluster_texts;
mod connection;
mod finished;
mod local;
mod object_values;
mod pods;
mod ssh;
mod user;
mod view;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use culvert_api::{ClaimedUser, NodeName};

use crate::args::Whom;
use crate::program_name::ProgramName;
pub(crate) use cluster_texts::ClusterText;
pub(crate) use connection::{ByteStream, Connection};
pub(crate) use culvert_site::answered::NoAnswer;
pub(crate) use finished::Finished;
use local::Local;
use pods::ProxyPod;
use ssh::Ssh;

/// A host with programs of Culvert.
#[derive(Debug)]
pub(crate) struct Host {
    name: String,
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    Local(Local),
    Ssh(Ssh),
    Pod(Box<ProxyPod>),
}

/// A socket of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// Where the proxy answers people.
    Control,
    /// The proxy's pages.
    Proxy,
    /// The redirector's pages.
    Redirector,
    /// HTTP CONNECT to nodes.
    Connect,
}

/// A connection on the way to a port of a node.
pub(crate) struct NodeWay {
    pub(crate) connection: Connection,
    /// `None` by the view: there the proxy has the node's answer already.
    pub(crate) proxy: Option<ProxyToAsk>,
}

/// A proxy whose CONNECT socket is still to be asked for the node.
pub(crate) struct ProxyToAsk {
    /// Who asks, if that is known.
    pub(crate) user: Option<ClaimedUser>,
}

/// A client of the kubeconfig's API server.
///
/// # Errors
/// There is no kubeconfig, or it is wrong.
pub(crate) async fn api_client(whom: &Whom) -> Result<kube::Client> {
    Ok(pods::access(whom).await?.client)
}

impl Socket {
    /// The word of `culvert-proxy control-stdio --to`.
    fn flag_value(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Proxy => "proxy",
            Self::Redirector => "redirector",
            Self::Connect => "connect",
        }
    }

    /// The command that connects standard input and output with it.
    fn command(self) -> [&'static str; 4] {
        ["culvert-proxy", "control-stdio", "--to", self.flag_value()]
    }
}

/// Programs of an edge node, which are asked on that node only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EdgeProgram {
    pub(crate) program: &'static str,
    pub(crate) admin_socket: PathBuf,
}

/// The hosts that are asked.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// Hosts with a proxy.
    pub(crate) cloud: Vec<Host>,
    /// Programs of this host, if it is an edge node.
    pub(crate) edge: Vec<EdgeProgram>,
}

impl Hosts {
    /// The hosts that the flags name. Without any: this host, or else the kubeconfig's cluster.
    ///
    /// # Errors
    /// There is none of these, or the cluster does not list its pods.
    pub(crate) async fn find(whom: &Whom) -> Result<Self> {
        let wants_cluster = whom.context.is_some()
            || whom.kubeconfig.is_some()
            || whom.view
            || ProgramName::of_process() != ProgramName::Culvert;
        let is_named = wants_cluster || !whom.ssh.is_empty();
        let mut hosts = Self {
            cloud: Vec::new(),
            edge: Vec::new(),
        };
        if whom.local || !is_named {
            hosts.add_this_host(&whom.run_dir);
        }
        for host in &whom.ssh {
            hosts.cloud.push(Host {
                name: host.clone(),
                transport: Transport::Ssh(Ssh::new(host, whom.timeout)),
            });
        }
        let is_empty = hosts.cloud.is_empty() && hosts.edge.is_empty();
        if wants_cluster || (is_empty && !whom.local && pods::has_kubeconfig()) {
            for pod in ProxyPod::list(whom).await? {
                hosts.cloud.push(Host {
                    name: pod.host.clone(),
                    transport: Transport::Pod(Box::new(pod)),
                });
            }
        } else if is_empty {
            bail!(
                "no program of Culvert has a socket in {}, and there is no kubeconfig: give --ssh \
                 HOST, or --kubeconfig FILE; on a host with Culvert, run this as root",
                whom.run_dir.display()
            );
        }
        Ok(hosts)
    }

    /// The context of the cluster that is asked, if one is.
    pub(crate) fn context(&self, whom: &Whom) -> Option<String> {
        if !self.cloud.iter().any(Host::is_pod) {
            return None;
        }
        whom.context.clone().or_else(|| pods::current_context(whom))
    }

    fn add_this_host(&mut self, run_dir: &Path) {
        let local = Local::new(run_dir);
        for program in local.edge_programs() {
            self.edge.push(program);
        }
        if local.has_proxy() {
            self.cloud.push(Host {
                name: "this host".to_owned(),
                transport: Transport::Local(local),
            });
        }
    }
}

impl Host {
    /// For people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether its proxy is part of a cluster.
    pub(crate) fn is_pod(&self) -> bool {
        matches!(self.transport, Transport::Pod(_))
    }

    /// Whether what runs there has the API server of its own pod.
    pub(crate) fn is_in_cluster(&self) -> bool {
        match &self.transport {
            Transport::Pod(_) => true,
            Transport::Local(_) => std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            Transport::Ssh(_) => false,
        }
    }

    /// Connects with one of its sockets. By ssh and in a pod this succeeds before the socket is
    /// reached: what is wrong is known after a failure only ([`Connection::unanswered`]).
    pub(crate) async fn connect(&self, socket: Socket) -> Result<Connection, NoAnswer> {
        match &self.transport {
            Transport::Local(local) => local.connect(socket).await,
            Transport::Ssh(ssh) => ssh.connect(&socket.command()).await,
            Transport::Pod(pod) => pod.connect(socket).await,
        }
    }

    /// Connects with a port of a node, as far as the proxy or to the node.
    pub(crate) async fn connect_node(
        &self,
        node: &NodeName,
        port: u16,
    ) -> Result<NodeWay, NoAnswer> {
        match &self.transport {
            Transport::Pod(pod) => pod.connect_node(node, port).await,
            Transport::Local(_) | Transport::Ssh(_) => Ok(NodeWay {
                connection: self.connect(Socket::Connect).await?,
                proxy: Some(ProxyToAsk { user: None }),
            }),
        }
    }

    /// Whether it is reached by its proxy's view, which limits each user. Known after a question.
    pub(crate) fn is_by_view(&self) -> bool {
        match &self.transport {
            Transport::Pod(pod) => pod.is_by_view(),
            Transport::Local(_) | Transport::Ssh(_) => false,
        }
    }

    /// Runs `culvert-proxy` there, with the sockets of its running proxy.
    pub(crate) async fn run_proxy(&self, arguments: &[String]) -> Result<Finished, NoAnswer> {
        let mut words = vec!["culvert-proxy".to_owned()];
        words.extend_from_slice(arguments);
        self.run(&words).await
    }

    /// Runs a command there; in a cluster in the proxy's container.
    pub(crate) async fn run(&self, words: &[String]) -> Result<Finished, NoAnswer> {
        match &self.transport {
            Transport::Local(local) => local.run(words).await,
            Transport::Ssh(ssh) => ssh.run(words).await,
            Transport::Pod(pod) => pod.run(words).await,
        }
    }

    /// Logs of all pods of Culvert and events of their namespace, if it is one of them.
    pub(crate) async fn cluster_texts(&self, deadline: Duration) -> Vec<ClusterText> {
        match &self.transport {
            Transport::Pod(pod) => pod.cluster_texts(deadline).await,
            Transport::Local(_) | Transport::Ssh(_) => Vec::new(),
        }
    }
}
