//! Identities: the proxy's own certificate, agents' certificates, and the node that a client
//! certificate stands for. Tokens and revocations are here too. Nothing here listens or dials: other
//! crates show it certificates and tokens.
#![forbid(unsafe_code)]

pub mod authority;
mod callers;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod handshake;
pub mod identity;
mod ledger;
mod maintain;
mod revocation_sync;
mod revocations;
mod revoke;
mod source;
pub mod tokens;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::Directory;
use culvert_proxy_core::state::{StateDir, StateError, StateFile};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::VerifierBuilderError;
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;

use crate::authority::{AuthorityError, ProvenKey};
use crate::identity::{
    Binding, Credential, IdentityError, Leaf, PROXY_ROLE, Purpose, RENEWAL_GRACE,
};
pub use callers::Callers;
use handshake::ServerIdentity;
use ledger::file::LedgerFile;
use ledger::{CertificateStatus, Ledger};
use revocation_sync::PeerSync;
pub use revocation_sync::Revoked;
pub use revocations::Revocations;
use source::Material;
pub use source::TrustSource;

const REVOCATIONS: StateFile = StateFile {
    name: "revocations.json",
    what: "the revocations that the cluster's proxies share, as last seen",
};

/// Certificates round times to whole seconds, and calendars are reliable for some years only.
const LIFETIMES: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3650 * 24 * 3600);

/// The configuration of trust.
#[derive(Clone, Debug)]
pub struct TrustConfig {
    /// Where the authority and what was revoked are kept.
    pub state: StateDir,
    /// The source of certificates.
    pub source: TrustSource,
    /// `--server-name`: the name that agents verify, whatever host they dial.
    pub server_name: String,
    /// Hosts of `--advertise`. They are in the proxy's certificate too, for CONNECT callers that
    /// verify the host they dial.
    pub hosts: Vec<String>,
    /// `--certificate-lifetime`: the validity of agents' certificates.
    pub certificate_lifetime: Duration,
}

/// The reason why trust cannot be set up, or a certificate cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The state directory is not usable.
    #[error(transparent)]
    State(#[from] StateError),
    /// The authority is not usable.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// No TLS can be set up with the certificate.
    #[error("use the certificate in {what}")]
    Tls {
        /// What it has.
        what: String,
        /// The cause.
        source: rustls::Error,
    },
    /// The authorities of clients are not usable.
    #[error("use the authorities of client certificates in {what}")]
    Verifier {
        /// What it has.
        what: String,
        /// The cause.
        source: rustls::server::VerifierBuilderError,
    },
    /// The certificate is not for the name that agents verify.
    #[error(
        "the certificate in {file} is not for the name {name:?}: give a name that it has with \
         --server-name"
    )]
    ServerName {
        /// The file.
        file: String,
        /// `--server-name`.
        name: String,
    },
    /// `--server-name` is no name.
    #[error("{0:?} is not a server name: give a DNS name with --server-name")]
    ServerNameText(String),
    /// `--certificate-lifetime` is too short or too long.
    #[error(
        "a certificate lifetime of {} s is not possible: --certificate-lifetime takes 1s to 3650d",
        .0.as_secs()
    )]
    Lifetime(Duration),
    /// The authority of CONNECT clients is the agents' too.
    #[error(
        "{file} has an authority of the agents: any edge node could dial any other with its own \
         certificate. Give CONNECT clients an authority of their own with --connect-client-ca"
    )]
    SharedAuthority {
        /// The file.
        file: String,
    },
    /// The Node of a certificate is not known yet.
    #[error(
        "the cluster's Node {node} is not known well enough to bind a certificate to it: its UID \
         is missing"
    )]
    NoUid {
        /// The node.
        node: NodeName,
    },
    /// The ready certificate does not say that it is a proxy's.
    #[error(
        "the certificate in {what} is not one that other proxies accept: it needs the URI \
         {PROXY_ROLE} among its subject alternative names, and the extended key usages serverAuth \
         and clientAuth; or start the proxy without --peer"
    )]
    NoProxyRole {
        /// What it has.
        what: String,
    },
    /// This proxy has no authority that could sign.
    #[error(
        "this proxy uses ready certificates (--tls-cert, --tls-key, --agent-ca) and cannot make \
         any: give the agent its certificate with --cert, --key and --ca, or start the proxy with \
         --ca-cert and --ca-key"
    )]
    NoAuthority,
}

/// An agent's certificate, and what the agent needs to trust proxies.
#[derive(Debug)]
pub struct Issued {
    /// The certificate, and what it needs for its verification.
    pub chain_pem: String,
    /// The authority's.
    pub ca_pem: String,
}

/// Issues certificates and judges those of agents. Clones share it.
#[derive(Clone, Debug)]
pub struct Trust(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: TrustConfig,
    directory: Directory,
    identity: ServerIdentity,
    agent_config: ArcSwap<ServerConfig>,
    material: Mutex<Material>,
    callers: Mutex<Option<Callers>>,
    ledger: RwLock<Ledger>,
    /// The ledger on disk. Locked while it is written; readers of the ledger do not wait for that.
    ledger_file: Mutex<LedgerFile>,
    /// Set in a cluster.
    cluster: Option<Shares>,
    /// Signals each new revocation.
    revoked_tx: watch::Sender<()>,
    /// Whether another proxy has reported what was revoked while this one was away.
    peer_sync: watch::Sender<PeerSync>,
    steady: SteadyClock,
    admission: Mutex<()>,
}

/// What the proxies of a cluster share about certificates.
#[derive(Debug)]
struct Shares {
    /// All revocations that this proxy knows.
    known: watch::Sender<Revocations>,
    /// Those of them that are on disk.
    written: Mutex<Revocations>,
    /// The cluster's revocations as last read; `None`: not read yet.
    agreed: watch::Sender<Option<Revocations>>,
}

/// The time for which proxies have run on this state. No jump of a wall clock changes it.
#[derive(Debug)]
struct SteadyClock {
    started: Instant,
    before: Duration,
}

impl Trust {
    /// Reads or creates the material that the source names.
    pub fn open(config: TrustConfig, directory: Directory) -> Result<Self, TrustError> {
        if !LIFETIMES.contains(&config.certificate_lifetime) {
            return Err(TrustError::Lifetime(config.certificate_lifetime));
        }
        if !matches!(
            ServerName::try_from(config.server_name.as_str()),
            Ok(ServerName::DnsName(_))
        ) {
            return Err(TrustError::ServerNameText(config.server_name));
        }
        let now = UnixTime::now();
        let cluster = if directory.is_cluster() {
            let known: Revocations = config.state.read(REVOCATIONS)?.unwrap_or_default();
            Some(Shares {
                written: Mutex::new(known.clone()),
                known: watch::Sender::new(known),
                agreed: watch::Sender::default(),
            })
        } else {
            None
        };
        let (ledger_file, mut ledger) = LedgerFile::open(&config.state)?;
        ledger.prune(grace(cluster.is_some()), now);
        let steady = SteadyClock {
            started: Instant::now(),
            before: ledger.served(),
        };
        let (material, certificate) = Material::load(&config, now)?;
        let identity = ServerIdentity::new(certificate).map_err(|source| TrustError::Tls {
            what: config.source.to_string(),
            source,
        })?;
        let agent_config = ArcSwap::from_pointee(agent_config(&config, &identity, &material)?);
        Ok(Self(Arc::new(Shared {
            config,
            directory,
            identity,
            agent_config,
            material: Mutex::new(material),
            callers: Mutex::default(),
            ledger: RwLock::new(ledger),
            ledger_file: Mutex::new(ledger_file),
            cluster,
            revoked_tx: watch::Sender::default(),
            peer_sync: watch::Sender::new(PeerSync::Done),
            steady,
            admission: Mutex::default(),
        })))
    }

    /// TLS settings for the agent port. Call this for each connection: the settings change with the
    /// files.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.0.agent_config.load_full()
    }

    /// TLS settings for clients that show a token: the proxy's certificate, and none of theirs. It
    /// changes by itself when the proxy's certificate does.
    pub fn token_server_config(&self) -> Arc<ServerConfig> {
        Arc::new(handshake::token_config(&self.0.identity))
    }

    /// TLS settings for the peer port. Call this for each connection.
    pub fn peer_server_config(&self) -> Result<Arc<ServerConfig>, TrustError> {
        let material = self.material();
        handshake::peer_server_config(&self.0.identity, material.authorities())
            .map(Arc::new)
            .map_err(|source| self.verifier_error(source))
    }

    /// TLS settings for dialling another proxy. Call this for each connection.
    pub fn peer_client_config(&self, alpn: &[u8]) -> Result<ClientConfig, TrustError> {
        let material = self.material();
        handshake::peer_client_config(&self.0.identity, material.authorities(), alpn)
            .map_err(|source| self.verifier_error(source))
    }

    /// Checks that other proxies will accept this proxy's certificate.
    pub fn check_proxy_role(&self) -> Result<(), TrustError> {
        let own = self.0.identity.present();
        if let Some(der) = own.cert.first()
            && let Ok(leaf) = Leaf::read(der)
            && leaf.is_proxy
        {
            return Ok(());
        }
        Err(TrustError::NoProxyRole {
            what: self.0.config.source.to_string(),
        })
    }

    fn verifier_error(&self, source: VerifierBuilderError) -> TrustError {
        TrustError::Verifier {
            what: self.0.config.source.to_string(),
            source,
        }
    }

    /// TLS settings for the CONNECT listener: the proxy's certificate, and a required client
    /// certificate of an authority in the file. The file is read again when it changes.
    pub fn callers(&self, client_ca: &Path) -> Result<Callers, TrustError> {
        let callers = Callers::open(client_ca, &self.0.identity, self.material().authorities())?;
        *self.lock_callers() = Some(callers.clone());
        Ok(callers)
    }

    /// The node that a verified chain belongs to, and what is kept of its certificate.
    pub fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
    ) -> Result<Credential, IdentityError> {
        let credential =
            Leaf::read(chain.first().ok_or(IdentityError::NoCertificate)?)?.credential()?;
        let now = UnixTime::now();
        match self.judge(&credential, purpose, now)? {
            CertificateStatus::New if self.is_recorded(&credential) => self.record(credential, now),
            CertificateStatus::New | CertificateStatus::Known | CertificateStatus::Revoked => {
                Ok(credential)
            }
        }
    }

    /// Whether a tunnel that uses the certificate may continue.
    pub fn check(&self, credential: &Credential, now: UnixTime) -> Result<(), IdentityError> {
        match self.judge(credential, Purpose::Tunnel, now) {
            // The certificate was admitted with more knowledge than there is now.
            Ok(_) | Err(IdentityError::Undecided { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn judge(
        &self,
        credential: &Credential,
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<CertificateStatus, IdentityError> {
        let status = match &self.0.cluster {
            Some(shares) => self.status_in_cluster(shares, credential)?,
            None => self.status_alone(credential)?,
        };
        if status == CertificateStatus::Revoked {
            return Err(IdentityError::Revoked {
                node: credential.node.clone(),
            });
        }
        if !self.0.directory.contains(&credential.node) {
            return Err(IdentityError::UnknownNode {
                node: credential.node.clone(),
            });
        }
        credential.timely(purpose, self.grace(), now)?;
        Ok(status)
    }

    /// Judges a certificate outside of a cluster. A certificate of a node that was never seen here
    /// has to wait until another proxy has reported its revocations.
    fn status_alone(&self, credential: &Credential) -> Result<CertificateStatus, IdentityError> {
        let ledger = self.ledger();
        let status = ledger.status(credential);
        // The certificate itself says which revocation it follows, so one recorded certificate of
        // the node is enough to know the node.
        let is_seen = credential.binding.is_some() && ledger.holds_any(&credential.node);
        if status == CertificateStatus::New
            && !is_seen
            && *self.0.peer_sync.borrow() == PeerSync::Pending
        {
            let node = credential.node.clone();
            return Err(IdentityError::Undecided { node });
        }
        Ok(status)
    }

    /// Judges a Node's certificate: it must belong to the present Node and be issued after the
    /// Node's last revocation. A certificate that was never seen before has to wait until the
    /// revocations are known.
    fn status_in_cluster(
        &self,
        shares: &Shares,
        credential: &Credential,
    ) -> Result<CertificateStatus, IdentityError> {
        let node = credential.node.clone();
        let status = match &credential.binding {
            Some(Binding {
                uid: Some(uid),
                revocation,
            }) => match self.0.directory.uid(&credential.node) {
                Some(present) if present != *uid => {
                    return Err(IdentityError::EarlierNode { node });
                }
                None => return Err(IdentityError::UnknownNode { node }),
                Some(_) if *revocation < shares.known.borrow().last(uid) => {
                    CertificateStatus::Revoked
                }
                Some(_) if self.ledger().has(credential) => CertificateStatus::Known,
                Some(_) => CertificateStatus::New,
            },
            Some(_) | None if self.material().authority().is_some() => {
                return Err(IdentityError::Unbound { node });
            }
            // An operator issues all certificates here.
            Some(_) | None => self.ledger().status(credential),
        };
        if status == CertificateStatus::New && shares.agreed.borrow().is_none() {
            return Err(IdentityError::Undecided { node });
        }
        Ok(status)
    }

    /// A certificate issued outside a cluster says by itself whether it was revoked. So one such
    /// certificate is enough to know that the node had any. All others must be in the ledger.
    fn is_recorded(&self, credential: &Credential) -> bool {
        self.0.cluster.is_some()
            || credential.binding.is_none()
            || !self.ledger().holds_any(&credential.node)
    }

    /// Held while an agent is admitted or a node is removed, so that no certificate is issued on
    /// outdated facts.
    pub fn admission(&self) -> MutexGuard<'_, ()> {
        self.0.admission.lock()
    }

    /// Issues a certificate for the node, which showed `shown` for it. The new one is void when
    /// `shown` is.
    pub fn issue(
        &self,
        node: &NodeName,
        key: &ProvenKey,
        shown: Option<&Credential>,
    ) -> Result<Issued, TrustError> {
        let now = UnixTime::now();
        let binding = self.binding(node, shown)?;
        let lifetime = self.0.config.certificate_lifetime;
        let (made, ca_pem) = {
            let material = self.material();
            let authority = material.authority().ok_or(TrustError::NoAuthority)?;
            (
                authority.node_certificate((node, &binding), key, lifetime, now)?,
                authority.pem().to_owned(),
            )
        };
        let serial = made.serial;
        let not_after = made.expires;
        let credential = Credential {
            node: node.clone(),
            serial,
            not_before: now,
            not_after,
            binding: Some(binding),
        };
        if self.is_recorded(&credential) {
            self.ledger_mut().record(&credential, self.grace(), now);
        }
        Ok(Issued {
            chain_pem: made.pem,
            ca_pem,
        })
    }

    fn binding(&self, node: &NodeName, shown: Option<&Credential>) -> Result<Binding, TrustError> {
        let mut revocation = UnixTime::default();
        if let Some(shown) = shown
            && let Some(binding) = &shown.binding
        {
            revocation = binding.revocation;
        }
        let Some(shares) = &self.0.cluster else {
            let known = self.ledger().revocation(node);
            return Ok(Binding {
                uid: None,
                revocation: revocation.max(known),
            });
        };
        let Some(uid) = self.0.directory.uid(node) else {
            return Err(TrustError::NoUid { node: node.clone() });
        };
        let known = shares.known.borrow().last(&uid);
        Ok(Binding {
            uid: Some(uid),
            revocation: revocation.max(known),
        })
    }

    /// The pin that agents check when they join. Fails if this proxy cannot enrol agents.
    pub fn pin(&self) -> Result<String, TrustError> {
        self.material()
            .authority()
            .map(crate::authority::Authority::pin)
            .ok_or(TrustError::NoAuthority)
    }

    /// The authorities that agents trust for proxies, in PEM, if this proxy enrols agents.
    pub fn authorities_pem(&self) -> Option<String> {
        self.material()
            .authority()
            .map(|authority| authority.pem().to_owned())
    }

    /// The certificates in use with their roles: the proxy's own first, then the authorities of
    /// agents.
    pub fn certificates(&self) -> Vec<(&'static str, Leaf)> {
        let mut found = Vec::new();
        if let Some(own) = self.0.identity.present().cert.first()
            && let Ok(leaf) = Leaf::read(own)
        {
            found.push(("this proxy", leaf));
        }
        let authorities = self.material().authorities().to_vec();
        for authority in &authorities {
            if let Ok(leaf) = Leaf::read(authority) {
                found.push(("an authority of agents", leaf));
            }
        }
        found
    }

    /// The directory that the trust consults.
    pub fn directory(&self) -> &Directory {
        &self.0.directory
    }

    /// The validity of agents' certificates.
    pub fn certificate_lifetime(&self) -> Duration {
        self.0.config.certificate_lifetime
    }

    /// The name in the proxy's certificate that agents verify.
    pub fn server_name(&self) -> &str {
        &self.0.config.server_name
    }

    /// Notes a certificate that somebody else issued. It counts at once for the removal of its
    /// node. It is written to disk a moment later, together with others: thousands may come at the
    /// same time, and they are seen again if this process ends before the write.
    fn record(&self, credential: Credential, now: UnixTime) -> Result<Credential, IdentityError> {
        let mut ledger = self.ledger_mut();
        // The node may have been removed since the caller looked.
        if self.0.cluster.is_none() && ledger.status(&credential) == CertificateStatus::Revoked {
            return Err(IdentityError::Revoked {
                node: credential.node,
            });
        }
        ledger.record(&credential, self.grace(), now);
        Ok(credential)
    }

    fn grace(&self) -> Duration {
        grace(self.0.cluster.is_some())
    }

    fn served(&self) -> Duration {
        self.0
            .steady
            .before
            .saturating_add(self.0.steady.started.elapsed())
    }

    fn ledger_file(&self) -> MutexGuard<'_, LedgerFile> {
        self.0.ledger_file.lock()
    }

    fn ledger(&self) -> RwLockReadGuard<'_, Ledger> {
        self.0.ledger.read()
    }

    fn ledger_mut(&self) -> RwLockWriteGuard<'_, Ledger> {
        self.0.ledger.write()
    }

    fn lock_callers(&self) -> MutexGuard<'_, Option<Callers>> {
        self.0.callers.lock()
    }

    fn material(&self) -> MutexGuard<'_, Material> {
        self.0.material.lock()
    }
}

/// The time after its end for which a certificate can be renewed. In a cluster an agent enrols
/// again with its token, and a stolen certificate is worth nothing after its end.
fn grace(in_cluster: bool) -> Duration {
    if in_cluster {
        Duration::ZERO
    } else {
        RENEWAL_GRACE
    }
}

fn agent_config(
    config: &TrustConfig,
    identity: &ServerIdentity,
    material: &Material,
) -> Result<ServerConfig, TrustError> {
    handshake::agent_config(identity, material.authorities()).map_err(|source| {
        TrustError::Verifier {
            what: config.source.to_string(),
            source,
        }
    })
}

#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod tests;
