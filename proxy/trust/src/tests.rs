//! Trust with real files and real handshakes.

use std::path::Path;

use culvert_api::NodeName;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::authority::{Authority, ProvenKey};
use crate::identity::{Binding, Credential, IdentityError, Purpose};

const DAY: Duration = Duration::from_secs(24 * 3600);
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// A proxy's trust, with the directory of the node edge-1.
struct Site {
    directory: Directory,
    trust: Trust,
    path: TempDir,
}

impl Site {
    fn new(source: impl FnOnce(&Path) -> TrustSource) -> Self {
        let path = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(&path.path().join("directory"), &[edge_1()]);
        let trust =
            Trust::open(config(path.path(), source(path.path())), directory.clone()).unwrap();
        Self {
            directory,
            trust,
            path,
        }
    }

    fn embedded() -> Self {
        Self::new(|_| TrustSource::Embedded)
    }

    /// A certificate of edge-1 made at that time.
    fn certificate(&self, agent: &Agent, made: UnixTime) -> Vec<CertificateDer<'static>> {
        let material = self.trust.material();
        let made = material
            .authority()
            .unwrap()
            .node_certificate(
                (&edge_1(), &Binding::default()),
                &agent.proven(),
                LIFETIME,
                made,
            )
            .unwrap();
        chain(&made.pem)
    }

    fn authorities(&self) -> Vec<CertificateDer<'static>> {
        self.trust.material().authorities().to_vec()
    }
}

/// The key of an agent.
struct Agent(KeyPair);

impl Agent {
    fn new() -> Self {
        Self(KeyPair::generate().unwrap())
    }

    fn proven(&self) -> ProvenKey {
        let csr = CertificateParams::new(Vec::new())
            .unwrap()
            .serialize_request(&self.0)
            .unwrap();
        ProvenKey::from_csr(csr.der()).unwrap()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }
}

fn config(path: &Path, source: TrustSource) -> TrustConfig {
    TrustConfig {
        state: StateDir::open(&path.join("trust")).unwrap(),
        source,
        server_name: "culvert-proxy".to_owned(),
        hosts: vec!["proxy.example".to_owned(), "10.0.0.1".to_owned()],
        certificate_lifetime: LIFETIME,
    }
}

fn edge_1() -> NodeName {
    "edge-1".parse().unwrap()
}

fn node(identified: Result<Credential, IdentityError>) -> Result<NodeName, IdentityError> {
    identified.map(|credential| credential.node)
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

/// What both ends saw of a handshake.
#[derive(Debug)]
struct Shaken {
    client_chain: Vec<CertificateDer<'static>>,
    server_chain: Vec<CertificateDer<'static>>,
    alpn: Option<Vec<u8>>,
}

async fn shake(
    server: Arc<ServerConfig>,
    roots: &[CertificateDer<'static>],
    server_name: &str,
    client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<Shaken, String> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.to_vec());
    let builder = ClientConfig::builder_with_provider(handshake::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(store);
    let mut config = match client {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![culvert_api::ALPN_TUNNEL.to_vec()];
    let (near, far) = tokio::io::duplex(64 << 10);
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let (client, served) = tokio::join!(
        TlsConnector::from(Arc::new(config)).connect(name, near),
        TlsAcceptor::from(server).accept(far)
    );
    let client = client.map_err(|error| error.to_string())?;
    let served = served.map_err(|error| error.to_string())?;
    let owned = |chain: Option<&[CertificateDer<'static>]>| chain.unwrap_or_default().to_vec();
    Ok(Shaken {
        client_chain: owned(served.get_ref().1.peer_certificates()),
        server_chain: owned(client.get_ref().1.peer_certificates()),
        alpn: served.get_ref().1.alpn_protocol().map(<[u8]>::to_vec),
    })
}

#[tokio::test]
async fn a_certificate_makes_its_owner_the_node() {
    let site = Site::embedded();
    let agent = Agent::new();
    let issued = site.trust.issue(&edge_1(), &agent.proven(), None).unwrap();
    let client = Some((chain(&issued.chain_pem), agent.key()));
    // As an agent does: the authority comes from the answer, the name from nowhere.
    let shaken = shake(
        site.trust.server_config(),
        &chain(&issued.ca_pem),
        "culvert-proxy",
        client,
    )
    .await
    .unwrap();
    assert_eq!(shaken.alpn.unwrap(), culvert_api::ALPN_TUNNEL);
    assert_eq!(
        node(site.trust.identify(&shaken.client_chain, Purpose::Tunnel)),
        Ok(edge_1())
    );
    assert_eq!(
        shaken.server_chain[1],
        site.authorities()[0],
        "the chain holds what agents pin"
    );
}

#[tokio::test]
async fn the_proxys_certificate_is_for_its_name_and_for_its_advertised_hosts() {
    let site = Site::embedded();
    for name in ["culvert-proxy", "proxy.example", "10.0.0.1"] {
        shake(site.trust.server_config(), &site.authorities(), name, None)
            .await
            .unwrap();
    }
    let error = shake(
        site.trust.server_config(),
        &site.authorities(),
        "other.example",
        None,
    )
    .await
    .unwrap_err();
    assert!(error.contains("other.example"), "{error}");
}

#[tokio::test]
async fn a_stranger_may_shake_hands_but_is_nobody() {
    let site = Site::embedded();
    let shaken = shake(
        site.trust.server_config(),
        &site.authorities(),
        "culvert-proxy",
        None,
    )
    .await
    .unwrap();
    assert_eq!(
        site.trust.identify(&shaken.client_chain, Purpose::Renew),
        Err(IdentityError::NoCertificate)
    );
}

#[tokio::test]
async fn an_expired_certificate_passes_the_handshake_and_only_renews() {
    let site = Site::embedded();
    let agent = Agent::new();
    let made = UnixTime::now().before(LIFETIME + DAY);
    let client = Some((site.certificate(&agent, made), agent.key()));
    let shaken = shake(
        site.trust.server_config(),
        &site.authorities(),
        "culvert-proxy",
        client,
    )
    .await
    .unwrap();
    let identify = |purpose| site.trust.identify(&shaken.client_chain, purpose);
    assert!(matches!(
        identify(Purpose::Tunnel),
        Err(IdentityError::Expired { .. })
    ));
    assert_eq!(node(identify(Purpose::Renew)), Ok(edge_1()));
}

#[tokio::test]
async fn long_expired_and_foreign_certificates_do_not_pass_the_handshake() {
    let site = Site::embedded();
    let agent = Agent::new();
    let made = UnixTime::now().before(LIFETIME + RENEWAL_GRACE + DAY);
    let old = Some((site.certificate(&agent, made), agent.key()));
    shake(
        site.trust.server_config(),
        &site.authorities(),
        "culvert-proxy",
        old,
    )
    .await
    .unwrap_err();
    for made in [UnixTime::now(), UnixTime::now().before(LIFETIME + DAY)] {
        let foreign = Some((Site::embedded().certificate(&agent, made), agent.key()));
        shake(
            site.trust.server_config(),
            &site.authorities(),
            "culvert-proxy",
            foreign,
        )
        .await
        .unwrap_err();
    }
}

#[test]
fn a_removed_node_is_out_and_coming_back_readmits_no_old_certificate() {
    let site = Site::embedded();
    let agent = Agent::new();
    let old = chain(
        &site
            .trust
            .issue(&edge_1(), &agent.proven(), None)
            .unwrap()
            .chain_pem,
    );
    let unseen = site.certificate(&agent, UnixTime::now().before(DAY));
    site.trust.revoke(&edge_1()).unwrap();
    site.directory.editor().remove(&edge_1()).unwrap();
    assert_eq!(
        site.trust.identify(&old, Purpose::Tunnel),
        Err(IdentityError::Revoked { node: edge_1() })
    );

    site.directory
        .editor()
        .put(&edge_1(), Vec::new(), Vec::new())
        .unwrap();
    let new = chain(
        &site
            .trust
            .issue(&edge_1(), &agent.proven(), None)
            .unwrap()
            .chain_pem,
    );
    let Site {
        directory,
        trust,
        path,
    } = site;
    drop(trust);
    let trust = Trust::open(config(path.path(), TrustSource::Embedded), directory).unwrap();
    for purpose in [Purpose::Tunnel, Purpose::Renew] {
        assert_eq!(node(trust.identify(&new, purpose)), Ok(edge_1()));
        assert_eq!(
            trust.identify(&old, purpose),
            Err(IdentityError::Revoked { node: edge_1() })
        );
        assert_eq!(
            trust.identify(&unseen, purpose),
            Err(IdentityError::Revoked { node: edge_1() })
        );
    }
}

#[test]
fn a_node_that_left_the_directory_comes_back_without_its_old_certificates() {
    let site = Site::embedded();
    let old = chain(
        &site
            .trust
            .issue(&edge_1(), &Agent::new().proven(), None)
            .unwrap()
            .chain_pem,
    );
    site.trust.tend(UnixTime::now()).unwrap();
    site.directory.editor().remove(&edge_1()).unwrap();
    site.trust.departed(&edge_1());
    site.directory
        .editor()
        .put(&edge_1(), Vec::new(), Vec::new())
        .unwrap();
    assert_eq!(
        site.trust.identify(&old, Purpose::Renew),
        Err(IdentityError::Revoked { node: edge_1() })
    );
    let new = chain(
        &site
            .trust
            .issue(&edge_1(), &Agent::new().proven(), None)
            .unwrap()
            .chain_pem,
    );
    assert_eq!(
        node(site.trust.identify(&new, Purpose::Tunnel)),
        Ok(edge_1())
    );

    // It leaves and comes back while this proxy does not run.
    site.trust.tend(UnixTime::now()).unwrap();
    site.directory.editor().remove(&edge_1()).unwrap();
    let Site {
        directory,
        trust,
        path,
    } = site;
    drop(trust);
    let trust = Trust::open(
        config(path.path(), TrustSource::Embedded),
        directory.clone(),
    )
    .unwrap();
    trust.departed_meanwhile();
    directory
        .editor()
        .put(&edge_1(), Vec::new(), Vec::new())
        .unwrap();
    assert_eq!(
        trust.identify(&new, Purpose::Renew),
        Err(IdentityError::Revoked { node: edge_1() })
    );
}

#[test]
fn a_removal_holds_though_another_proxy_of_the_same_authority_renews() {
    let site = Site::embedded();
    let other = Site::new(|_| {
        let authority = site.path.path().join("trust");
        TrustSource::Authority {
            cert: authority.join("ca.crt"),
            key: authority.join("ca.key"),
        }
    });
    let stolen = chain(
        &site
            .trust
            .issue(&edge_1(), &Agent::new().proven(), None)
            .unwrap()
            .chain_pem,
    );
    site.trust.revoke(&edge_1()).unwrap();
    let shown = other.trust.identify(&stolen, Purpose::Renew).unwrap();
    let renewed = chain(
        &other
            .trust
            .issue(&edge_1(), &Agent::new().proven(), Some(&shown))
            .unwrap()
            .chain_pem,
    );
    assert_eq!(
        site.trust.identify(&renewed, Purpose::Tunnel),
        Err(IdentityError::Revoked { node: edge_1() })
    );
}

#[test]
fn a_proxy_that_was_away_admits_nobody_new_before_another_one_has_told_what_was_revoked() {
    let site = Site::embedded();
    let shows = |agent: &Agent| {
        let certificate = site.certificate(agent, UnixTime::now());
        node(site.trust.identify(&certificate, Purpose::Tunnel))
    };
    let agent = Agent::new();
    site.trust.require_peer_sync();
    let undecided = Err(IdentityError::Undecided { node: edge_1() });
    assert_eq!(shows(&agent), undecided);
    // The node is not new to the proxy that gives it a certificate.
    site.trust.issue(&edge_1(), &agent.proven(), None).unwrap();
    assert_eq!(shows(&agent), Ok(edge_1()));
    let revoked = Revoked {
        node: edge_1(),
        uid: None,
        at: UnixTime::now(),
        until: UnixTime::now(),
    };
    site.trust
        .apply_revocations(std::slice::from_ref(&revoked))
        .unwrap();
    let is_revoked = Err(IdentityError::Revoked { node: edge_1() });
    assert_eq!(shows(&agent), is_revoked);
    site.trust.record_peer_sync();
    assert_eq!(shows(&agent), is_revoked, "with a new key as well");
    let Site {
        directory,
        trust,
        path,
    } = site;
    drop(trust);
    let restarted = Trust::open(config(path.path(), TrustSource::Embedded), directory).unwrap();
    let on_disk = restarted.all_revoked();
    assert_eq!((on_disk.len(), on_disk[0].at), (1, revoked.at));
}

#[tokio::test]
async fn a_revocation_is_news_once_wherever_it_comes_from() {
    let site = Site::embedded();
    let mut news = site.trust.revocation_changes();
    site.trust.revoke(&edge_1()).unwrap();
    assert!(news.has_changed().unwrap());
    news.mark_unchanged();
    let known = site.trust.all_revoked();
    site.trust.apply_revocations(&known).unwrap();
    assert!(!news.has_changed().unwrap(), "it would go round for ever");
    let later = Revoked {
        at: known[0].at + DAY,
        ..known[0].clone()
    };
    site.trust.apply_revocations(&[later]).unwrap();
    assert!(news.has_changed().unwrap());
}

#[test]
fn a_node_that_the_directory_lacks_is_nobody() {
    let site = Site::embedded();
    let agent = Agent::new();
    let chain = chain(
        &site
            .trust
            .issue(&"edge-2".parse().unwrap(), &agent.proven(), None)
            .unwrap()
            .chain_pem,
    );
    assert!(matches!(
        site.trust.identify(&chain, Purpose::Renew),
        Err(IdentityError::UnknownNode { .. })
    ));
}

#[test]
fn impossible_settings_are_refused_with_the_flag() {
    let site = Site::embedded();
    let Site {
        directory,
        trust,
        path,
    } = site;
    drop(trust);
    let open = |change: &dyn Fn(&mut TrustConfig)| {
        let mut config = config(path.path(), TrustSource::Embedded);
        change(&mut config);
        Trust::open(config, directory.clone())
            .unwrap_err()
            .to_string()
    };
    assert!(
        open(&|config| config.certificate_lifetime = Duration::ZERO)
            .contains("--certificate-lifetime")
    );
    assert!(open(&|config| config.server_name = "10.0.0.1".into()).contains("--server-name"));
}

#[test]
fn the_proxys_own_certificate_is_renewed_before_it_ends() {
    let site = Site::embedded();
    let present = || site.trust.0.identity.present().cert[0].clone();
    let first = present();
    let later = UnixTime::now() + 20 * DAY;
    site.trust.refresh(UnixTime::now()).unwrap();
    assert_eq!(present(), first);
    site.trust.refresh(later).unwrap();
    assert_ne!(present(), first);
    assert!(Leaf::read(&present()).unwrap().not_after > later + 29 * DAY);
}

#[test]
fn a_clock_that_was_set_back_leaves_no_certificate_of_the_future_in_use() {
    let site = Site::embedded();
    let back = UnixTime::now().before(400 * DAY);
    site.trust.refresh(back).unwrap();
    let present = Leaf::read(&site.trust.0.identity.present().cert[0]).unwrap();
    assert!(present.not_before <= back && back < present.not_after);
}

#[test]
fn a_certificate_that_was_seen_is_written_down_a_moment_later() {
    let site = Site::embedded();
    let seen = site.certificate(&Agent::new(), UnixTime::now());
    let serial = String::from(Leaf::read(&seen[0]).unwrap().serial);
    let is_written = || {
        let file = site.path.path().join("trust/certificates.jsonl");
        std::fs::read_to_string(file).is_ok_and(|text| text.contains(&serial))
    };
    assert_eq!(
        node(site.trust.identify(&seen, Purpose::Tunnel)),
        Ok(edge_1())
    );
    assert!(!is_written(), "nobody waited for the disk");
    site.trust.tend(UnixTime::now()).unwrap();
    assert!(is_written());
}

#[test]
fn a_revocation_that_cannot_be_written_holds_all_the_same() {
    let site = Site::embedded();
    let leaf = chain(
        &site
            .trust
            .issue(&edge_1(), &Agent::new().proven(), None)
            .unwrap()
            .chain_pem,
    );
    site.trust.tend(UnixTime::now()).unwrap();
    let file = site.path.path().join("trust/certificates.jsonl");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(site.trust.revoke(&edge_1()).is_err());
    assert_eq!(
        site.trust.identify(&leaf, Purpose::Tunnel),
        Err(IdentityError::Revoked { node: edge_1() })
    );
}

#[tokio::test]
async fn an_operators_authority_signs_and_its_change_is_taken_up() {
    let site = Site::new(|path| {
        let state = StateDir::open(&path.join("authority")).unwrap();
        Authority::embedded(&state).unwrap();
        TrustSource::Authority {
            cert: state.join("ca.crt"),
            key: state.join("ca.key"),
        }
    });
    let before = site.trust.pin().unwrap();
    let cert = site.path.path().join("authority/ca.crt");
    let key = site.path.path().join("authority/ca.key");
    std::fs::write(&key, "half a key").unwrap();
    assert!(
        site.trust
            .refresh(UnixTime::now())
            .unwrap_err()
            .to_string()
            .contains("ca.key")
    );
    assert_eq!(
        site.trust.pin().unwrap(),
        before,
        "a broken file leaves what was good"
    );
    std::fs::remove_file(&cert).unwrap();
    std::fs::remove_file(&key).unwrap();
    Authority::embedded(&StateDir::open(&site.path.path().join("authority")).unwrap()).unwrap();
    site.trust.refresh(UnixTime::now()).unwrap();
    assert_ne!(site.trust.pin().unwrap(), before);
    let agent = Agent::new();
    let client = Some((
        chain(
            &site
                .trust
                .issue(&edge_1(), &agent.proven(), None)
                .unwrap()
                .chain_pem,
        ),
        agent.key(),
    ));
    shake(
        site.trust.server_config(),
        &chain(&std::fs::read_to_string(cert).unwrap()),
        "culvert-proxy",
        client,
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn with_ready_certificates_nobody_enrols_and_agents_of_their_authority_are_admitted() {
    let operator = Site::embedded();
    let site = Site::new(|path| ready(path, &operator.trust, "culvert-proxy"));
    assert!(
        site.trust
            .pin()
            .unwrap_err()
            .to_string()
            .contains("--tls-cert")
    );
    let agent = Agent::new();
    assert!(matches!(
        site.trust.issue(&edge_1(), &agent.proven(), None),
        Err(TrustError::NoAuthority)
    ));
    let client = Some((operator.certificate(&agent, UnixTime::now()), agent.key()));
    let shaken = shake(
        site.trust.server_config(),
        &operator.authorities(),
        "culvert-proxy",
        client,
    )
    .await
    .unwrap();
    assert_eq!(
        node(site.trust.identify(&shaken.client_chain, Purpose::Tunnel)),
        Ok(edge_1())
    );
    site.trust.revoke(&edge_1()).unwrap();
    let revoked = site.trust.identify(&shaken.client_chain, Purpose::Tunnel);
    assert_eq!(
        revoked,
        Err(IdentityError::Revoked { node: edge_1() }),
        "seen once, it can be revoked"
    );
}

#[test]
fn a_ready_certificate_for_another_name_is_refused_with_the_fix() {
    let operator = Site::embedded();
    let path = tempfile::tempdir().unwrap();
    let directory = Directory::for_tests(&path.path().join("directory"), &[]);
    let source = ready(path.path(), &operator.trust, "other.example");
    let error = Trust::open(config(path.path(), source), directory)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("tls.crt is not for the name \"culvert-proxy\"")
            && error.contains("--server-name"),
        "{error}"
    );
}

/// Files as an operator would bring them.
fn ready(path: &Path, operator: &Trust, name: &str) -> TrustSource {
    let material = operator.material();
    let authority = material.authority().unwrap();
    let made = authority
        .server_certificate(&[name.to_owned()], UnixTime::now())
        .unwrap();
    let write = |name: &str, contents: &str| {
        std::fs::write(path.join(name), contents).unwrap();
        path.join(name)
    };
    let cert = write("tls.crt", &pem("CERTIFICATE", &made.chain[0]));
    let key = write("tls.key", &pem("PRIVATE KEY", made.key.secret_der()));
    TrustSource::Ready {
        cert,
        key,
        agent_ca: write("agents.crt", authority.pem()),
    }
}

fn pem(kind: &str, der: &[u8]) -> String {
    use std::fmt::Write;
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {kind}-----\n");
    for three in der.chunks(3) {
        let bits = three
            .iter()
            .chain([&0; 2])
            .take(3)
            .fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        for digit in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap();
            let padded = if digit > three.len() {
                '='
            } else {
                char::from(DIGITS[index])
            };
            write!(text, "{padded}").unwrap();
        }
    }
    text + &format!("\n-----END {kind}-----\n")
}

#[test]
fn an_authority_of_the_agents_vouches_for_no_connect_client() {
    let site = Site::embedded();
    let file = site.path.path().join("client-ca.pem");
    std::fs::write(&file, site.trust.material().authority().unwrap().pem()).unwrap();
    let error = site.trust.callers(&file).unwrap_err();
    assert!(
        matches!(error, TrustError::SharedAuthority { .. }),
        "{error}"
    );
    std::fs::write(
        &file,
        Site::embedded().trust.material().authority().unwrap().pem(),
    )
    .unwrap();
    assert!(site.trust.callers(&file).unwrap().server_config().is_some());
}

#[tokio::test]
async fn who_may_call_changes_with_the_file_and_with_the_agents_authority() {
    let site = Site::new(|path| {
        let state = StateDir::open(&path.join("authority")).unwrap();
        Authority::embedded(&state).unwrap();
        TrustSource::Authority {
            cert: state.join("ca.crt"),
            key: state.join("ca.key"),
        }
    });
    let file = site.path.path().join("client-ca.pem");
    let first = Site::embedded();
    let second = Site::embedded();
    let pem_of = |site: &Site| site.trust.material().authority().unwrap().pem().to_owned();
    std::fs::write(&file, pem_of(&first)).unwrap();
    let callers = site.trust.callers(&file).unwrap();
    let agent = Agent::new();
    let call = async |authority: &Site| {
        let mut config = (*callers.server_config().ok_or("nobody may call")?).clone();
        config.alpn_protocols.clear();
        let client = Some((authority.certificate(&agent, UnixTime::now()), agent.key()));
        shake(
            Arc::new(config),
            &site.authorities(),
            "culvert-proxy",
            client,
        )
        .await
        .map(drop)
    };
    call(&first).await.unwrap();
    call(&second).await.unwrap_err();

    std::fs::write(&file, pem_of(&second)).unwrap();
    site.trust.tend(UnixTime::now()).unwrap();
    call(&second).await.unwrap();
    call(&first).await.unwrap_err();

    std::fs::write(&file, "half a file").unwrap();
    assert!(
        site.trust
            .tend(UnixTime::now())
            .unwrap_err()
            .to_string()
            .contains("client-ca.pem")
    );
    call(&second).await.unwrap();

    // The agents' authority is rotated to that very one: the file is still broken, and it counts
    // all the same.
    let authority = site.path.path().join("authority");
    for name in ["ca.crt", "ca.key"] {
        std::fs::copy(
            second.path.path().join("trust").join(name),
            authority.join(name),
        )
        .unwrap();
    }
    site.trust.tend(UnixTime::now()).unwrap_err();
    assert_eq!(call(&second).await.unwrap_err(), "nobody may call");
    std::fs::write(&file, pem_of(&second)).unwrap();
    assert!(
        site.trust
            .tend(UnixTime::now())
            .unwrap_err()
            .to_string()
            .contains("has an authority of the agents")
    );
    std::fs::write(&file, pem_of(&first)).unwrap();
    site.trust.tend(UnixTime::now()).unwrap();
    call(&first).await.unwrap();
}

#[tokio::test]
async fn no_agent_becomes_a_connect_client_by_a_root_that_its_authority_is_below() {
    let authority = |issuer: Option<&Issuer<'static, KeyPair>>| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(
            DnType::CommonName,
            if issuer.is_some() { "agents" } else { "root" },
        );
        let certificate = match issuer {
            Some(issuer) => params.signed_by(&key, issuer),
            None => params.self_signed(&key),
        };
        (
            certificate.unwrap(),
            key.serialize_pem(),
            Issuer::new(params, key),
        )
    };
    let (root, _, root_issuer) = authority(None);
    let (below, below_key, _) = authority(Some(&root_issuer));
    let site = Site::new(|path| {
        std::fs::write(path.join("ca.crt"), below.pem()).unwrap();
        std::fs::write(path.join("ca.key"), below_key).unwrap();
        std::fs::write(path.join("root.crt"), root.pem()).unwrap();
        TrustSource::Authority {
            cert: path.join("ca.crt"),
            key: path.join("ca.key"),
        }
    });
    let callers = site
        .trust
        .callers(&site.path.path().join("root.crt"))
        .unwrap();
    let mut callers = (*callers.server_config().unwrap()).clone();
    callers.alpn_protocols.clear();
    let callers = Arc::new(callers);
    let agent = Agent::new();
    let mut as_agent = chain(
        &site
            .trust
            .issue(&edge_1(), &agent.proven(), None)
            .unwrap()
            .chain_pem,
    );
    as_agent.push(below.der().clone());
    let shake = |client| {
        shake(
            callers.clone(),
            std::slice::from_ref(below.der()),
            "culvert-proxy",
            Some(client),
        )
    };
    let refused = shake((as_agent, agent.key())).await.unwrap_err();
    assert!(
        refused.contains("ApplicationVerificationFailure"),
        "{refused}"
    );
    let caller = CertificateParams::new(vec!["kube-apiserver".into()])
        .unwrap()
        .signed_by(&agent.0, &root_issuer);
    shake((vec![caller.unwrap().der().clone()], agent.key()))
        .await
        .unwrap();
}
