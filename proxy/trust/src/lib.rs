//! Identities: the proxy's own certificate, agents' certificates, and the node that a client
//! certificate stands for. Tokens and revocations are here too. Nothing here listens or dials: other
//! crates show it certificates and tokens.
#![forbid(unsafe_code)]

pub mod authority;
mod callers;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod handshake;
pub mod identity;
mod issue;
mod judge;
mod ledger;
mod maintain;
mod revocation_sync;
mod revocations;
mod revoke;
mod source;
mod tls;
pub mod tokens;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::Directory;
use culvert_proxy_core::state::{StateDir, StateFile};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio::sync::watch;

pub use callers::Callers;
pub use error::TrustError;
use handshake::ServerIdentity;
use identity::{Leaf, RENEWAL_GRACE};
pub use issue::Issued;
use ledger::Ledger;
use ledger::file::LedgerFile;
use revocation_sync::PeerSync;
pub use revocation_sync::Revoked;
pub use revocations::Revocations;
use source::Material;
pub use source::TrustSource;
use tls::agent_config;

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
    /// The known revocations that are on disk.
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

#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod tests;
