//! `culvert.enroll.v1`: gives agents their first certificate and renews it.

mod rate;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use culvert_api::proto::enroll::enroll_server::{Enroll as Service, EnrollServer};
use culvert_api::proto::enroll::{Certificate, JoinRequest, RenewRequest};
use culvert_api::{InvalidNodeName, NodeName};
use culvert_daemon::LogBudget;
use culvert_proxy_cluster::{AccountError, ServiceAccounts};
use culvert_proxy_core::directory::{Directory, NodeUid};
use culvert_proxy_core::metrics::{CertificateRequest, Metrics};
use culvert_proxy_peers::{JoinAnswer, Peers};
use culvert_proxy_trust::authority::{CsrError, ProvenKey};
use culvert_proxy_trust::identity::{Credential, IdentityError, Purpose};
use culvert_proxy_trust::tokens::{TokenError, TokenText, Tokens, TokensError};
use culvert_proxy_trust::{Trust, TrustError};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use rate::{CertificateRate, TooOften};

/// A token and a signing request take less than 16 KiB.
const MAX_REQUEST_BYTES: usize = 24 << 10;
/// Concurrent requests. Each costs a signature and a write to disk. Further requests wait.
const MAX_CONCURRENT: usize = 16;

/// The client's certificates as verified in the TLS handshake, the client's own first. It is empty
/// if the client showed none.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerChain(pub(crate) Vec<CertificateDer<'static>>);

/// The client, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientAddr(pub(crate) SocketAddr);

/// The reason why an agent gets no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrollError {
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Tokens(TokensError),
    #[error(transparent)]
    Node(#[from] InvalidNodeName),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(
        "the request has two tokens: one of `culvert token create` or one of a service \
         account"
    )]
    TwoTokens,
    #[error("the proxy gave up on the request: see its log")]
    GivenUp,
    #[error(transparent)]
    Csr(#[from] CsrError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    TooOften(#[from] TooOften),
    #[error("{}", .0.message())]
    AtPeer(Box<Status>),
}

/// The enrolment service.
#[derive(Clone)]
pub struct Enroll {
    trust: Trust,
    tokens: Tokens,
    /// Set if the proxy is part of a cluster.
    accounts: Option<Arc<ServiceAccounts>>,
    /// The proxies that may know a token that this one does not. A proxy that is asked by another
    /// one asks no further one.
    peers: Option<Arc<Peers>>,
    directory: Directory,
    metrics: Metrics,
    permits: Arc<Semaphore>,
    rate: Arc<CertificateRate>,
    refusals: Arc<LogBudget>,
}

/// The service with its limits. Each request needs the extensions `PeerChain` and `ClientAddr`.
pub fn service(
    trust: Trust,
    tokens: Tokens,
    accounts: Option<Arc<ServiceAccounts>>,
    metrics: Metrics,
    peers: Option<Arc<Peers>>,
) -> EnrollServer<Enroll> {
    let enroll = Enroll {
        peers,
        ..Enroll::new(trust, tokens, accounts, metrics)
    };
    EnrollServer::new(enroll).max_decoding_message_size(MAX_REQUEST_BYTES)
}

#[tonic::async_trait]
impl Service for Enroll {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<Certificate>, Status> {
        let client = client(&request);
        let request = request.into_inner();
        if request.service_account_token.is_empty() {
            let joined = self.join_with_token(request).await;
            self.respond(CertificateRequest::Join, client, joined)
        } else {
            let joined = if request.token.is_empty() {
                self.join_with_account(&request.service_account_token, request.csr, client)
                    .await
            } else {
                Err(EnrollError::TwoTokens)
            };
            self.respond(CertificateRequest::JoinAccount, client, joined)
        }
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        let client = client(&request);
        let PeerChain(chain) = request.extensions().get().cloned().unwrap_or_default();
        let RenewRequest { csr } = request.into_inner();
        let renewed = self
            .run_blocking(move |enroll| enroll.renew_now(&chain, &csr))
            .await;
        self.respond(CertificateRequest::Renew, client, renewed)
    }
}

impl Enroll {
    fn new(
        trust: Trust,
        tokens: Tokens,
        accounts: Option<Arc<ServiceAccounts>>,
        metrics: Metrics,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
        let refusals = Arc::default();
        let rate = Arc::new(CertificateRate::new(trust.certificate_lifetime()));
        Self {
            directory: trust.directory().clone(),
            trust,
            tokens,
            accounts,
            peers: None,
            metrics,
            permits,
            rate,
            refusals,
        }
    }

    /// Runs on a blocking thread, because it signs and writes to disk.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, EnrollError> + Send + 'static,
    ) -> Result<T, EnrollError> {
        let permit = self.permits.clone().acquire_owned().await;
        let enroll = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&enroll)
        });
        done.await.unwrap_or(Err(EnrollError::GivenUp))
    }

    /// The response to a request, whose outcome is counted and logged.
    fn respond(
        &self,
        request: CertificateRequest,
        client: Option<SocketAddr>,
        done: Result<Certificate, EnrollError>,
    ) -> Result<Response<Certificate>, Status> {
        let outcome = match &done {
            Ok(_) => "ok",
            Err(error) => error.reason(),
        };
        self.metrics.enrolment(request, outcome);
        let request: &str = request.into();
        let client = client.map(tracing::field::display);
        let error = match done {
            Ok(certificate) => {
                let node = &certificate.node;
                tracing::info!(request, node, client.addr = client, "certificate given");
                return Ok(Response::new(certificate));
            }
            Err(error) => error,
        };
        if let Some(suppressed) = self.refusals.spend() {
            let reason = culvert_daemon::chain(&error);
            tracing::warn!(
                request,
                client.addr = client,
                outcome,
                reason,
                suppressed,
                "certificate refused"
            );
        }
        Err(error.status())
    }

    /// The pod of the token determines the node. The cheap checks come first, so that strangers
    /// cannot make the proxy ask the API server or verify signatures.
    async fn join_with_account(
        &self,
        token: &str,
        csr: Vec<u8>,
        client: Option<SocketAddr>,
    ) -> Result<Certificate, EnrollError> {
        let Some(accounts) = self.accounts.clone() else {
            return Err(AccountError::NoCluster.into());
        };
        self.trust.pin()?;
        let token = accounts.read(token)?;
        let key = self
            .run_blocking(move |_| Ok(ProvenKey::from_csr(&csr)?))
            .await?;
        let (node, uid) = accounts.node(&token, address(client)).await?;
        self.rate.spend(&node, Instant::now())?;
        self.run_blocking(move |enroll| enroll.issue_to_pod(&accounts, node, uid, &key))
            .await
    }

    fn issue_to_pod(
        &self,
        accounts: &ServiceAccounts,
        node: NodeName,
        uid: Option<NodeUid>,
        key: &ProvenKey,
    ) -> Result<Certificate, EnrollError> {
        let _admission = self.trust.admission();
        if !self.directory.contains(&node) {
            return Err(accounts.not_an_edge(node).into());
        }
        if uid.is_some() && uid != self.directory.uid(&node) {
            return Err(AccountError::EarlierNode { node }.into());
        }
        self.certificate(node, key, None)
    }

    /// A token that this proxy does not know may be another one's.
    async fn join_with_token(&self, request: JoinRequest) -> Result<Certificate, EnrollError> {
        let tried = request.clone();
        let joined = self
            .run_blocking(move |enroll| enroll.join_now(&tried))
            .await;
        if let Err(EnrollError::Token(TokenError::Foreign(_))) = &joined
            && let Some(peers) = &self.peers
            && let JoinAnswer::Answered(answer) = peers.join(&request).await
        {
            return answer.map_err(|status| EnrollError::AtPeer(Box::new(status)));
        }
        joined
    }

    fn join_now(&self, request: &JoinRequest) -> Result<Certificate, EnrollError> {
        self.trust.pin()?;
        let token: TokenText = request.token.parse()?;
        let asked = match request.node.as_str() {
            "" => None,
            name => Some(name.parse()?),
        };
        // The cheap check first, so that strangers cannot make the proxy verify signatures.
        self.tokens.check(&token, asked.as_ref())?;
        let key = ProvenKey::from_csr(&request.csr)?;
        let _admission = self.trust.admission();
        let node = self.tokens.check(&token, asked.as_ref())?;
        if !self.directory.contains(&node) {
            return Err(IdentityError::UnknownNode { node }.into());
        }
        self.rate.spend(&node, Instant::now())?;
        let node = self.tokens.redeem(&token, asked.as_ref(), key.digest())?;
        self.certificate(node, &key, None)
    }

    fn renew_now(
        &self,
        chain: &[CertificateDer<'static>],
        csr: &[u8],
    ) -> Result<Certificate, EnrollError> {
        self.trust.pin()?;
        let shown = self.trust.identify(chain, Purpose::Renew)?;
        self.rate.spend(&shown.node, Instant::now())?;
        let key = ProvenKey::from_csr(csr)?;
        let _admission = self.trust.admission();
        let shown = self.trust.identify(chain, Purpose::Renew)?;
        self.certificate(shown.node.clone(), &key, Some(&shown))
    }

    fn certificate(
        &self,
        node: NodeName,
        key: &ProvenKey,
        shown: Option<&Credential>,
    ) -> Result<Certificate, EnrollError> {
        let issued = self.trust.issue(&node, key, shown)?;
        let view = self.directory.node(&node);
        Ok(Certificate {
            chain_pem: issued.chain_pem,
            ca_pem: issued.ca_pem,
            node: node.to_string(),
            server_name: self.trust.server_name().to_owned(),
            vip4: view.map(|view| view.vip4.to_string()).unwrap_or_default(),
        })
    }
}

fn address(client: Option<SocketAddr>) -> IpAddr {
    match client {
        Some(client) => client.ip(),
        None => IpAddr::from([0, 0, 0, 0]),
    }
}

fn client<T>(request: &Request<T>) -> Option<SocketAddr> {
    request
        .extensions()
        .get::<ClientAddr>()
        .map(|client| client.0)
}

impl From<TokensError> for EnrollError {
    fn from(error: TokensError) -> Self {
        match error {
            TokensError::Refused(refused) => Self::Token(refused),
            error
            @ (TokensError::State(_) | TokensError::Full(_) | TokensError::Unknown { .. }) => {
                Self::Tokens(error)
            }
        }
    }
}

impl EnrollError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Token(error) => error.reason(),
            Self::Identity(error) => error.reason(),
            Self::Csr(_) => "bad_csr",
            Self::Trust(TrustError::NoAuthority) => "no_authority",
            Self::Account(error) => error.reason(),
            Self::TwoTokens => "malformed_token",
            Self::Node(_) => "other_node",
            Self::TooOften(_) => "too_often",
            Self::AtPeer(_) => "refused_elsewhere",
            Self::Tokens(_) | Self::Trust(_) | Self::GivenUp => "internal",
        }
    }

    /// The answer to the agent. Causes inside the proxy appear in the proxy's log only.
    fn status(&self) -> Status {
        let text = self.to_string();
        match self {
            Self::Token(error) => token_status(error, text),
            Self::Node(_) | Self::Csr(_) | Self::TwoTokens => Status::invalid_argument(text),
            Self::Account(error) => account_status(error, text),
            Self::TooOften(_) => Status::resource_exhausted(text),
            Self::GivenUp => Status::internal(text),
            Self::AtPeer(status) => Status::new(status.code(), text),
            Self::Identity(IdentityError::NoCertificate) => Status::unauthenticated(text),
            Self::Identity(IdentityError::Undecided { .. }) => Status::unavailable(text),
            Self::Identity(_) => Status::permission_denied(text),
            Self::Trust(TrustError::NoAuthority) => Status::failed_precondition(text),
            Self::Tokens(_) | Self::Trust(_) => {
                Status::unavailable("the proxy cannot store what it has to: see its log")
            }
        }
    }
}

fn token_status(error: &TokenError, text: String) -> Status {
    match error {
        TokenError::Malformed | TokenError::NoNode(_) => Status::invalid_argument(text),
        // It tells a proxy that asks another one for a certificate that the other does not know the
        // token.
        TokenError::Foreign(_) => Status::not_found(text),
        TokenError::WrongSecret(_) => Status::unauthenticated(text),
        TokenError::Used(_)
        | TokenError::Expired(..)
        | TokenError::Revoked(_)
        | TokenError::OtherNode(..) => Status::permission_denied(text),
    }
}

fn account_status(error: &AccountError, text: String) -> Status {
    match error {
        AccountError::NoCluster => Status::failed_precondition(text),
        AccountError::Malformed => Status::invalid_argument(text),
        AccountError::Unanswered(_) => {
            Status::unavailable("the proxy cannot ask the cluster about the token: see its log")
        }
        AccountError::Busy | AccountError::TooManyRefusals => Status::resource_exhausted(text),
        AccountError::Audience { .. }
        | AccountError::Account { .. }
        | AccountError::NotAuthenticated(_)
        | AccountError::NotBound
        | AccountError::Pod { .. }
        | AccountError::NodeName(_)
        | AccountError::NotAnEdge { .. }
        | AccountError::EarlierNode { .. } => Status::permission_denied(text),
    }
}

#[cfg(test)]
mod tests;
