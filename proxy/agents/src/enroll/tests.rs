//! Enrolment from the agent's point of view: its results, and the answer to each mistake.

use culvert_proxy_core::directory::Directory;
use culvert_proxy_core::state::StateDir;
use culvert_proxy_trust::identity::Leaf;
use culvert_proxy_trust::tokens::NewToken;
use culvert_proxy_trust::{TrustConfig, TrustSource};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;
use tonic::Code;

use super::*;

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

struct Site {
    enroll: Enroll,
    directory: Directory,
    tokens: Tokens,
    trust: Trust,
    _path: TempDir,
}

impl Site {
    fn new() -> Self {
        let path = tempfile::tempdir().unwrap();
        let state = StateDir::open(&path.path().join("trust")).unwrap();
        let directory = Directory::for_tests(&path.path().join("directory"), &[edge_1()]);
        let config = TrustConfig {
            state: state.clone(),
            source: TrustSource::Embedded,
            server_name: "culvert-proxy".into(),
            hosts: Vec::new(),
            certificate_lifetime: 30 * DAY,
        };
        let trust = Trust::open(config, directory.clone()).unwrap();
        let tokens = Tokens::open(state, DAY).unwrap();
        let enroll = Enroll::new(trust.clone(), tokens.clone(), None, Metrics::default());
        Self {
            enroll,
            directory,
            tokens,
            trust,
            _path: path,
        }
    }

    fn token(&self) -> String {
        let NewToken { text, .. } = self.tokens.create(&edge_1(), None).unwrap();
        text.reveal()
    }

    async fn join(&self, token: &str, csr: Vec<u8>) -> Result<Certificate, Status> {
        let mut request = Request::new(JoinRequest {
            token: token.to_owned(),
            csr,
            ..JoinRequest::default()
        });
        request
            .extensions_mut()
            .insert(ClientAddr("10.0.3.7:40000".parse().unwrap()));
        self.enroll.join(request).await.map(Response::into_inner)
    }

    async fn renew(
        &self,
        chain: &[CertificateDer<'static>],
        csr: Vec<u8>,
    ) -> Result<Certificate, Status> {
        let mut request = Request::new(RenewRequest { csr });
        request.extensions_mut().insert(PeerChain(chain.to_vec()));
        self.enroll.renew(request).await.map(Response::into_inner)
    }
}

fn edge_1() -> NodeName {
    "edge-1".parse().unwrap()
}

/// A request that claims to be another node.
fn csr(pair: &KeyPair) -> Vec<u8> {
    CertificateParams::new(vec!["edge-9".to_owned()])
        .unwrap()
        .serialize_request(pair)
        .unwrap()
        .der()
        .to_vec()
}

fn chain(certificate: &Certificate) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(certificate.chain_pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

fn refused(answer: Result<Certificate, Status>, code: Code, text: &str) {
    let status = answer.unwrap_err();
    assert!(
        status.code() == code && status.message().contains(text),
        "{status}"
    );
}

#[tokio::test]
async fn a_token_becomes_a_certificate_of_its_node_whatever_the_request_claims() {
    let site = Site::new();
    let pair = KeyPair::generate().unwrap();
    let certificate = site.join(&site.token(), csr(&pair)).await.unwrap();
    assert_eq!(
        (certificate.node.as_str(), certificate.server_name.as_str()),
        ("edge-1", "culvert-proxy")
    );
    assert_eq!(
        Leaf::read(&chain(&certificate)[0]).unwrap().names,
        ["edge-1"]
    );
    assert_eq!(
        site.trust
            .identify(&chain(&certificate), Purpose::Tunnel)
            .unwrap()
            .node,
        edge_1()
    );
}

#[tokio::test]
async fn a_lost_answer_can_be_asked_for_again_but_only_with_the_same_key() {
    let site = Site::new();
    let pair = KeyPair::generate().unwrap();
    let thief = KeyPair::generate().unwrap();
    let token = site.token();
    let first = site.join(&token, csr(&pair)).await.unwrap();
    let again = site.join(&token, csr(&pair)).await.unwrap();
    assert_ne!(
        Leaf::read(&chain(&first)[0]).unwrap().serial,
        Leaf::read(&chain(&again)[0]).unwrap().serial
    );
    refused(
        site.join(&token, csr(&thief)).await,
        Code::PermissionDenied,
        "was used already",
    );
}

#[tokio::test]
async fn every_misuse_of_a_token_has_its_own_answer() {
    let site = Site::new();
    let pair = KeyPair::generate().unwrap();
    let token = site.token();
    refused(
        site.join("", csr(&pair)).await,
        Code::InvalidArgument,
        "not a join token",
    );
    refused(
        site.join(&Site::new().token(), csr(&pair)).await,
        Code::NotFound,
        "is it for another proxy?",
    );
    let flipped = if token.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{flipped}", &token[..token.len() - 1]);
    refused(
        site.join(&wrong, csr(&pair)).await,
        Code::Unauthenticated,
        "secret of token",
    );
    let id = token.split('.').nth(1).unwrap();
    site.tokens.revoke(id).unwrap();
    refused(
        site.join(&token, csr(&pair)).await,
        Code::PermissionDenied,
        "was revoked",
    );
}

#[tokio::test]
async fn an_expired_token_is_told_so() {
    let site = Site::new();
    // The clock of tokens has a resolution of one second, so a token without lifetime expires with
    // the second in which it was made.
    let token = site
        .tokens
        .create(&edge_1(), Some(std::time::Duration::ZERO))
        .unwrap();
    while culvert_proxy_core::clock::UnixTime::now() <= token.expires {
        tokio::task::yield_now().await;
    }
    let answer = site
        .join(&token.text.reveal(), csr(&KeyPair::generate().unwrap()))
        .await;
    refused(answer, Code::PermissionDenied, "expired at");
}

#[tokio::test]
async fn a_bad_signing_request_does_not_use_the_token_up() {
    let site = Site::new();
    let pair = KeyPair::generate().unwrap();
    let token = site.token();
    let mut forged = csr(&pair);
    let last = forged.len() - 1;
    forged[last] ^= 1;
    refused(
        site.join(&token, forged).await,
        Code::InvalidArgument,
        "signature of its own",
    );
    refused(
        site.join(&token, vec![0; 9000]).await,
        Code::InvalidArgument,
        "9000 bytes",
    );
    site.join(&token, csr(&pair)).await.unwrap();
}

#[tokio::test]
async fn a_token_of_a_node_that_is_gone_is_refused_and_not_used_up() {
    let site = Site::new();
    let pair = KeyPair::generate().unwrap();
    let token = site.token();
    site.directory.editor().remove(&edge_1()).unwrap();
    refused(
        site.join(&token, csr(&pair)).await,
        Code::PermissionDenied,
        "has no node edge-1",
    );
    site.directory
        .editor()
        .put(&edge_1(), Vec::new(), Vec::new())
        .unwrap();
    site.join(&token, csr(&pair)).await.unwrap();
}

#[tokio::test]
async fn a_certificate_is_renewed_for_a_new_key_until_the_node_is_removed() {
    let site = Site::new();
    let first = site
        .join(&site.token(), csr(&KeyPair::generate().unwrap()))
        .await
        .unwrap();
    let second = site
        .renew(&chain(&first), csr(&KeyPair::generate().unwrap()))
        .await
        .unwrap();
    assert_eq!(
        site.trust
            .identify(&chain(&second), Purpose::Tunnel)
            .unwrap()
            .node,
        edge_1()
    );
    refused(
        site.renew(&[], csr(&KeyPair::generate().unwrap())).await,
        Code::Unauthenticated,
        "no client certificate",
    );
    site.trust.revoke(&edge_1()).unwrap();
    site.directory.editor().remove(&edge_1()).unwrap();
    refused(
        site.renew(&chain(&second), csr(&KeyPair::generate().unwrap()))
            .await,
        Code::PermissionDenied,
        "revoked",
    );
}

#[tokio::test]
async fn an_agent_that_renews_without_end_is_told_to_wait_and_keeps_its_certificate() {
    let site = Site::new();
    let pair = KeyPair::generate().unwrap();
    let first = chain(&site.join(&site.token(), csr(&pair)).await.unwrap());
    let mut given = 0;
    let refused_at = loop {
        match site.renew(&first, csr(&pair)).await {
            Ok(_) if given < 100 => given += 1,
            other => break other,
        }
    };
    refused(
        refused_at,
        Code::ResourceExhausted,
        "edge-1 was given too many",
    );
    assert!(given >= 10, "{given}");
    assert!(site.trust.identify(&first, Purpose::Tunnel).is_ok());
}
