//! Calls of `culvert.enroll.v1` on a connection to a proxy: Join and Renew.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use culvert_api::NodeName;
use culvert_api::proto::enroll::enroll_client::EnrollClient;
use culvert_api::proto::enroll::{Certificate, JoinRequest, RenewRequest};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use crate::certificate::token::Token;
use crate::dial::connect::Connection;
use crate::identity::{Identity, IdentityError, IdentityText};

/// A proxy signs in milliseconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a proxy gave no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrollError {
    #[error("make a certificate request")]
    Request(#[source] rcgen::Error),
    #[error("HTTP/2")]
    Http2(#[source] hyper::Error),
    #[error("the proxy answered: {}", .0.message())]
    Status(Box<Status>),
    #[error(
        "no answer within {} s to the request for a certificate, though TLS works: perhaps \
         something on the way loses large packets, then --tunnel-mss 1200 helps",
        CALL_TIMEOUT.as_secs()
    )]
    TimedOut,
    #[error("the proxy's answer is not a usable certificate")]
    Answer(#[source] IdentityError),
}

/// A certificate, as text to store and checked.
pub(crate) struct Enrolled {
    pub(crate) text: IdentityText,
    pub(crate) identity: Identity,
    /// The node's VIP. `None`: the proxy does not say it.
    pub(crate) vip4: Option<Ipv4Addr>,
}

/// What stands for a certificate before there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Credential<'a> {
    /// A token of `culvert token create`, and the node to become if the token is for several.
    Join(&'a Token, Option<&'a NodeName>),
    /// The token of the agent's pod.
    ServiceAccount(&'a Token),
}

/// Exchanges a token for a certificate of `key`.
pub(crate) async fn join(
    connection: Connection,
    credential: Credential<'_>,
    key: &KeyPair,
    server_name: &str,
) -> Result<Enrolled, EnrollError> {
    let mut request = JoinRequest {
        csr: csr(key)?,
        ..JoinRequest::default()
    };
    match credential {
        Credential::Join(token, node) => {
            request.token.clone_from(&token.0);
            request.node = node.map(ToString::to_string).unwrap_or_default();
        }
        Credential::ServiceAccount(token) => request.service_account_token.clone_from(&token.0),
    }
    let answer = call(connection, async |mut client| client.join(request).await).await?;
    enrolled(answer, key, server_name)
}

/// Asks for a new certificate, of `key`, for the node whose certificate the connection shows.
pub(crate) async fn renew(
    connection: Connection,
    key: &KeyPair,
    server_name: &str,
) -> Result<Enrolled, EnrollError> {
    let request = RenewRequest { csr: csr(key)? };
    let answer = call(connection, async |mut client| client.renew(request).await).await?;
    enrolled(answer, key, server_name)
}

/// The proxy takes the public key of it and nothing else.
fn csr(key: &KeyPair) -> Result<Vec<u8>, EnrollError> {
    let request = CertificateParams::default()
        .serialize_request(key)
        .map_err(EnrollError::Request)?;
    Ok(request.der().to_vec())
}

fn enrolled(
    answer: Certificate,
    key: &KeyPair,
    server_name: &str,
) -> Result<Enrolled, EnrollError> {
    let server_name = if answer.server_name.is_empty() {
        server_name.to_owned()
    } else {
        answer.server_name
    };
    let text = IdentityText {
        key: key.serialize_pem(),
        chain: answer.chain_pem,
        ca: answer.ca_pem,
        server_name,
    };
    let identity = text.parse().map_err(EnrollError::Answer)?;
    Ok(Enrolled {
        text,
        identity,
        vip4: answer.vip4.parse().ok(),
    })
}

/// One call on a connection of its own, which is driven here and gone afterwards.
async fn call(
    connection: Connection,
    call: impl AsyncFnOnce(EnrollClient<Requests>) -> Result<tonic::Response<Certificate>, Status>,
) -> Result<Certificate, EnrollError> {
    let called = async {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(connection)).await;
        let (requests, driver) = handshake.map_err(EnrollError::Http2)?;
        let client = EnrollClient::with_origin(
            Requests(requests),
            Uri::from_static("https://culvert-proxy"),
        );
        let answered = call(client);
        tokio::select! {
            answer = answered => match answer {
                Ok(certificate) => Ok(certificate.into_inner()),
                Err(status) => Err(EnrollError::Status(Box::new(status))),
            },
            Err(error) = driver => Err(EnrollError::Http2(error)),
        }
    };
    tokio::time::timeout(CALL_TIMEOUT, called)
        .await
        .unwrap_or(Err(EnrollError::TimedOut))
}

/// hyper's client in the form that tonic's wants.
struct Requests(SendRequest<Body>);

impl Service<Request<Body>> for Requests {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
