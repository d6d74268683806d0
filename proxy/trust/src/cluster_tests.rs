//! Trust among the proxies of a cluster: what one revokes, or what the cluster deletes, is void at
//! all of them.

use culvert_api::NodeName;
use culvert_proxy_core::directory::{ClusterNodes, DirectoryConfig, EdgeNode, NodesFrom};
use culvert_proxy_core::testing::FullDisk;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tempfile::TempDir;

use super::*;
use crate::authority::{Authority, ProvenKey};
use crate::identity::{Binding, IdentityError, Purpose};

const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What the proxies share.
struct Site {
    path: TempDir,
    authority: TrustSource,
}

/// One of the proxies.
struct Proxy {
    directory: Directory,
    trust: Trust,
}

impl Site {
    fn new() -> Self {
        let path = tempfile::tempdir().unwrap();
        let state = StateDir::open(&path.path().join("authority")).unwrap();
        Authority::embedded(&state).unwrap();
        let authority = TrustSource::Authority {
            cert: state.join("ca.crt"),
            key: state.join("ca.key"),
        };
        Self { path, authority }
    }

    /// A proxy as it starts: it has the state of its last run, and has not heard of the API server.
    fn start(&self, name: &str) -> Proxy {
        let state = StateDir::open(&self.path.path().join(name)).unwrap();
        let directory = DirectoryConfig {
            nodes_from: NodesFrom::Cluster,
            ..DirectoryConfig::for_tests(state.clone())
        };
        let directory = culvert_proxy_core::directory::open(&directory)
            .unwrap()
            .directory;
        let config = TrustConfig {
            state,
            source: self.authority.clone(),
            server_name: "culvert-proxy".to_owned(),
            hosts: Vec::new(),
            certificate_lifetime: LIFETIME,
        };
        Proxy {
            trust: Trust::open(config, directory.clone()).unwrap(),
            directory,
        }
    }

    /// One that knows the Node and what is revoked.
    fn started(&self, name: &str, uid: &str) -> Proxy {
        let proxy = self.start(name);
        proxy.sees(uid);
        proxy.hears(&Revocations::default());
        proxy
    }

    /// A certificate made at that time.
    fn certificate(&self, uid: Option<&str>, made: UnixTime) -> Vec<CertificateDer<'static>> {
        let TrustSource::Authority { cert, key } = &self.authority else {
            panic!("an authority")
        };
        let authority = Authority::from_files(cert, key).unwrap();
        let binding = Binding {
            uid: uid.map(|uid| uid.parse().unwrap()),
            ..Binding::default()
        };
        chain(
            &authority
                .node_certificate((&edge_1(), &binding), &key_of_an_agent(), LIFETIME, made)
                .unwrap()
                .pem,
        )
    }
}

impl Proxy {
    /// The Node edge-1 of this UID is the only one; the answer is which nodes are gone.
    fn sees(&self, uid: &str) -> Vec<NodeName> {
        let edge = EdgeNode {
            uid: Some(uid.parse().unwrap()),
            ..EdgeNode::default()
        };
        let nodes = ClusterNodes {
            edges: [(edge_1(), edge)].into(),
            ..ClusterNodes::default()
        };
        let allocation = self
            .directory
            .cluster_writer()
            .proposal()
            .agreed(None, nodes.edges.keys(), UnixTime::now(), 10_000)
            .unwrap()
            .allocation();
        self.directory
            .cluster_writer()
            .set_cluster(nodes, allocation)
            .unwrap()
    }

    fn hears(&self, found: &Revocations) -> Revocations {
        let all = self.trust.merge_revocations(found);
        self.trust.write_revocations().unwrap();
        self.trust.revocations_agreed(all.clone());
        all
    }

    fn knows(&self) -> Revocations {
        self.trust.revocations().unwrap().borrow().clone()
    }

    fn enrol(&self) -> Vec<CertificateDer<'static>> {
        chain(
            &self
                .trust
                .issue(&edge_1(), &key_of_an_agent(), None)
                .unwrap()
                .chain_pem,
        )
    }

    fn renew(
        &self,
        shown: &[CertificateDer<'static>],
    ) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        let shown = self.trust.identify(shown, Purpose::Renew)?;
        Ok(chain(
            &self
                .trust
                .issue(&shown.node, &key_of_an_agent(), Some(&shown))
                .unwrap()
                .chain_pem,
        ))
    }

    fn judge(&self, chain: &[CertificateDer<'static>]) -> &'static str {
        let outcomes = [Purpose::Tunnel, Purpose::Renew].map(|purpose| {
            self.trust
                .identify(chain, purpose)
                .map_or_else(|error| error.reason(), |_| "admitted")
        });
        assert_eq!(outcomes[0], outcomes[1]);
        outcomes[0]
    }
}

fn edge_1() -> NodeName {
    "edge-1".parse().unwrap()
}

fn key_of_an_agent() -> ProvenKey {
    let csr = CertificateParams::new(Vec::new())
        .unwrap()
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap();
    ProvenKey::from_csr(csr.der()).unwrap()
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn a_revocation_that_could_not_be_written_is_written_when_it_is_heard_again() {
    let site = Site::new();
    let one = site.started("one", "a");
    let other = site.started("other", "a");
    one.trust.revoke(&edge_1()).unwrap();
    let frozen = other.trust.0.config.state.freeze();
    other.trust.merge_revocations(&one.knows());
    other.trust.write_revocations().unwrap_err();
    assert_eq!(other.knows(), one.knows(), "it holds at once");
    drop(frozen);
    other.hears(&one.knows());
    drop(other);
    assert_eq!(site.start("other").knows(), one.knows());
}

#[test]
fn a_full_disk_keeps_no_revocation_from_the_other_proxies() {
    let site = Site::new();
    let one = site.started("one", "uid");
    let other = site.started("other", "uid");
    let stolen = other.enrol();
    let full = FullDisk::of(&site.path.path().join("one"), REVOCATIONS.name);
    one.trust.revoke(&edge_1()).unwrap_err();
    let shared = one.trust.merge_revocations(&Revocations::default());
    other.hears(&shared);
    assert_eq!(other.judge(&stolen), "revoked");
    one.trust.write_revocations().unwrap_err();
    drop(full);
    one.trust.write_revocations().unwrap();
    drop(one);
    assert_eq!(site.start("one").knows(), shared);
}

#[test]
fn a_node_that_was_deleted_and_made_again_readmits_no_old_certificate_anywhere() {
    let site = Site::new();
    let one = site.started("one", "first");
    let away = site.started("away", "first");
    let old = one.enrol();
    assert_eq!(
        (one.judge(&old), away.judge(&old)),
        ("admitted", "admitted")
    );
    let up = one.trust.identify(&old, Purpose::Tunnel).unwrap();
    drop(away);
    assert_eq!(
        one.sees("second"),
        [edge_1()],
        "its tunnels have to be closed"
    );
    assert_eq!(one.judge(&old), "revoked");
    assert_eq!(
        one.trust.check(&up, UnixTime::now()).unwrap_err().reason(),
        "revoked"
    );
    // That one saw neither the deletion nor the Node that came after it, until now.
    let away = site.started("away", "second");
    assert_eq!(away.judge(&old), "revoked");
    assert_eq!(away.judge(&one.enrol()), "admitted");
}

#[test]
fn a_revocation_holds_at_every_proxy_and_no_renewal_anywhere_undoes_it() {
    let site = Site::new();
    let one = site.started("one", "uid");
    let other = site.started("other", "uid");
    let stolen = one.enrol();
    one.trust.revoke(&edge_1()).unwrap();
    assert_eq!(one.judge(&stolen), "revoked");
    // The other does not know yet, and the thief is quick.
    let renewed = other.renew(&stolen).unwrap();
    let twice = other.renew(&renewed).unwrap();
    assert_eq!(
        (one.judge(&renewed), one.judge(&twice)),
        ("revoked", "revoked")
    );
    other.hears(&one.knows());
    for certificate in [&stolen, &renewed, &twice] {
        assert_eq!(other.judge(certificate), "revoked");
    }
    // The agent enrols by its token, and may renew.
    let new = other.enrol();
    assert_eq!(
        (one.judge(&new), one.judge(&other.renew(&new).unwrap())),
        ("admitted", "admitted")
    );
    drop((one, other));
    let again = site.started("one", "uid");
    assert_eq!(
        (again.judge(&stolen), again.judge(&new)),
        ("revoked", "admitted"),
        "on disk"
    );
}

#[test]
fn what_a_proxy_revoked_without_the_cluster_is_told_to_it_later() {
    let site = Site::new();
    let one = site.started("one", "uid");
    let other = site.started("other", "uid");
    other.trust.revoke(&edge_1()).unwrap();
    let merged = one.hears(&other.hears(&Revocations::default()));
    assert_eq!(merged, other.knows());
}

#[tokio::test]
async fn an_operator_waits_until_the_cluster_has_the_revocation() {
    let one = Site::new().started("one", "uid");
    one.trust.revocations_shared().await;
    one.trust.revoke(&edge_1()).unwrap();
    let mut shared = Box::pin(one.trust.revocations_shared());
    assert!(futures_util::poll!(&mut shared).is_pending());
    one.hears(&Revocations::default());
    shared.await;
}

#[test]
fn a_proxy_that_does_not_know_what_is_revoked_admits_only_what_it_has_seen() {
    let site = Site::new();
    let one = site.started("one", "uid");
    let seen = one.enrol();
    let unseen = site.certificate(Some("uid"), UnixTime::now());
    one.trust.tend(UnixTime::now()).unwrap();
    drop(one);
    let again = site.start("one");
    assert_eq!(
        (again.judge(&seen), again.judge(&unseen)),
        ("admitted", "undecided")
    );
    again.hears(&Revocations::default());
    assert_eq!(again.judge(&unseen), "admitted");
}

#[test]
fn a_certificate_that_names_no_node_of_the_cluster_is_refused() {
    let site = Site::new();
    let one = site.started("one", "uid");
    assert_eq!(
        one.judge(&site.certificate(None, UnixTime::now())),
        "unbound"
    );
    assert_eq!(
        one.judge(&site.certificate(Some("other"), UnixTime::now())),
        "revoked"
    );
}

#[test]
fn in_a_cluster_nothing_is_renewed_after_its_end_and_a_tunnel_ends_with_its_certificate() {
    let site = Site::new();
    let one = site.started("one", "uid");
    let ended = site.certificate(
        Some("uid"),
        UnixTime::now().before(LIFETIME + Duration::from_secs(120)),
    );
    assert_eq!(one.judge(&ended), "expired");
    let credential = one.trust.identify(&one.enrol(), Purpose::Tunnel).unwrap();
    let check = |now| {
        one.trust
            .check(&credential, now)
            .map_err(|error| error.reason())
    };
    assert_eq!(check(credential.not_after), Ok(()));
    assert_eq!(
        check(credential.ends() + Duration::from_secs(1)),
        Err("expired")
    );
}

#[test]
fn the_ledger_of_a_cluster_forgets_what_has_ended() {
    let site = Site::new();
    let one = site.started("one", "uid");
    for _ in 0..5 {
        one.enrol();
    }
    assert!(one.trust.ledger().has_any(&edge_1()));
    one.trust
        .ledger_mut()
        .prune(grace(true), UnixTime::now() + LIFETIME * 2);
    assert!(!one.trust.ledger().has_any(&edge_1()));
}
