//! Finds the node of the owner of a service-account token. The API server decides, after all checks
//! that do not need it.

mod callers;
mod claims;
mod review;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_api::{InvalidNodeName, NodeName};
use culvert_proxy_core::directory::NodeUid;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::Semaphore;

use super::Cluster;
use super::request::{RequestError, ask};
pub(crate) use callers::Callers;
pub(crate) use claims::{AccountToken, expires_before, has_audience};
use review::Reviewed;

/// The audience of agents' tokens. A token for the API server itself would be worth stealing from a
/// proxy.
const AUDIENCE: &str = "culvert";
const SERVICE_ACCOUNT: &str = "culvert-agent";
/// Concurrent questions. Each takes some milliseconds, so a thousand agents are done within
/// seconds.
const MAX_QUESTIONS: usize = 4;
/// The time limit. An agent that tries again is better than a connection that waits.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a service-account token belongs to no node.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// This proxy is in no cluster.
    #[error(
        "this proxy is not part of a Kubernetes cluster and cannot check service-account tokens: \
         start it with --kubernetes, or join with a token from `culvert token create`"
    )]
    NoCluster,
    /// It is no token of a service account.
    #[error(
        "this is not a service-account token: --service-account-token must be the file of a \
         projected token with audience {AUDIENCE}"
    )]
    Malformed,
    /// It is for another audience.
    #[error(
        "the token is for the audience {found:?}: set `audience: {AUDIENCE}` in the pod's \
         projected volume"
    )]
    Audience {
        /// What the token has.
        found: String,
    },
    /// It is of another account.
    #[error(
        "the token is of {found:?}, and nodes' agents are {wanted:?}: run the agent with that \
         service account"
    )]
    Account {
        /// What the token has.
        found: String,
        /// What it must have.
        wanted: String,
    },
    /// The API server does not accept it.
    #[error(
        "the API server does not accept the token ({0}): its pod is gone, it ended, or it is of \
         another cluster; the agent must read the file that kubelet keeps fresh"
    )]
    NotAuthenticated(String),
    /// It is bound to no pod.
    #[error(
        "the token is not bound to a pod: use the projected token of the agent's pod, not one \
         made by hand"
    )]
    NotBound,
    /// Its pod is not there, or is another one.
    #[error("the token's pod {pod} {problem}: the agent's present pod has a token of its own")]
    Pod {
        /// The pod.
        pod: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The node of its pod has an unusable name.
    #[error(transparent)]
    NodeName(#[from] InvalidNodeName),
    /// Its node is no edge node.
    #[error(
        "{node} is not an edge node: label it as --node-selector says ({selector:?}), or keep the \
         agent's DaemonSet off it"
    )]
    NotAnEdge {
        /// The node.
        node: NodeName,
        /// `--node-selector`.
        selector: String,
    },
    /// It is of a Node of the same name that is deleted.
    #[error(
        "the token was made for another Node {node} than the cluster has now, or than this proxy \
         knows yet: kubelet makes a new one"
    )]
    EarlierNode {
        /// The node.
        node: NodeName,
    },
    /// This address had too many tokens refused.
    #[error("too many tokens of this address were refused: try again in a minute")]
    TooManyRefusals,
    /// Too many tokens are being reviewed.
    #[error("too many agents ask at once: try again")]
    Busy,
    /// The API server did not say.
    #[error("the cluster cannot be asked about the token")]
    Unanswered(#[from] RequestError),
}

impl AccountError {
    /// Label for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoCluster => "no_cluster",
            Self::Malformed => "malformed_token",
            Self::Audience { .. } => "wrong_audience",
            Self::Account { .. } => "wrong_account",
            Self::NotAuthenticated(_) => "not_authenticated",
            Self::NotBound => "not_bound",
            Self::Pod { .. } | Self::EarlierNode { .. } => "wrong_pod",
            Self::NodeName(_) | Self::NotAnEdge { .. } => "not_an_edge",
            Self::TooManyRefusals | Self::Busy => "busy",
            Self::Unanswered(_) => "api_server",
        }
    }
}

/// Asks the cluster about tokens.
#[derive(Debug)]
pub struct ServiceAccounts {
    cluster: Cluster,
    /// The user name of the agents' account.
    account: String,
    turns: Semaphore,
    callers: Callers,
}

impl ServiceAccounts {
    /// Asks `cluster` about the tokens of its agents.
    pub fn new(cluster: Cluster) -> Arc<Self> {
        let account = format!(
            "system:serviceaccount:{}:{SERVICE_ACCOUNT}",
            cluster.namespace
        );
        Arc::new(Self {
            cluster,
            account,
            turns: Semaphore::new(MAX_QUESTIONS),
            callers: Callers::default(),
        })
    }

    /// A token that is worth a question.
    pub fn read(&self, token: &str) -> Result<AccountToken, AccountError> {
        AccountToken::read(token, &self.account)
    }

    /// The node of the token's pod, and the UID of the Node if the token has it. `client` is the
    /// address of the sender.
    pub async fn node(
        &self,
        token: &AccountToken,
        client: IpAddr,
    ) -> Result<(NodeName, Option<NodeUid>), AccountError> {
        if !self.callers.may_ask(client, Instant::now()) {
            return Err(AccountError::TooManyRefusals);
        }
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.turns.acquire()).await;
        let _turn = turn
            .map_err(|_| AccountError::Busy)?
            .map_err(|_| AccountError::Busy)?;
        let node = self.review(token).await;
        if let Err(error) = &node
            && !matches!(error, AccountError::Unanswered(_))
        {
            self.callers.record_refusal(client, Instant::now());
        }
        node
    }

    /// The error for a node that is not in the directory.
    pub fn not_an_edge(&self, node: NodeName) -> AccountError {
        AccountError::NotAnEdge {
            node,
            selector: self.cluster.config.edges.to_string(),
        }
    }

    async fn review(
        &self,
        token: &AccountToken,
    ) -> Result<(NodeName, Option<NodeUid>), AccountError> {
        let spec = TokenReviewSpec {
            audiences: Some(vec![AUDIENCE.to_owned()]),
            token: Some(token.reveal().to_owned()),
        };
        let reviews: Api<TokenReview> = Api::all(self.cluster.client.clone());
        let question = TokenReview {
            spec,
            ..TokenReview::default()
        };
        let answer = ask(reviews.create(&PostParams::default(), &question)).await?;
        match review::judge(answer.status.unwrap_or_default(), &self.account)? {
            Reviewed::Node(node, uid) => Ok((node, uid)),
            Reviewed::Pod(bound) => {
                let pods: Api<Pod> =
                    Api::namespaced(self.cluster.client.clone(), &self.cluster.namespace);
                let found = ask(pods.get_opt(&bound.name)).await?;
                review::node_of_pod(&bound, found.as_ref()).map(|node| (node, None))
            }
        }
    }
}
