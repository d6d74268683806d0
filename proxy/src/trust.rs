//! Who is who: the proxy's own certificate, those of agents, and which node a client certificate makes of its owner.

mod handshake;
mod ledger;
mod source;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use culvert_daemon::{Drain, Problem};
use culvert_tunnel::NodeName;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::authority::{AuthorityError, ProvenKey};
use crate::clock::UnixTime;
use crate::directory::Directory;
use crate::identity::{IdentityError, Leaf, Purpose};
use crate::state::{StateDir, StateError, StateFile};
use handshake::ServerIdentity;
use ledger::{Ledger, Standing};
use source::Material;
pub(crate) use source::TrustSource;

const CERTIFICATES: StateFile =
    StateFile { name: "certificates.json", what: "the revocations of removed nodes' certificates" };
/// How often given files are looked at, and whether the proxy's own certificate is due.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Certificates hold whole seconds, and no calendar is certain beyond some years.
const LIFETIMES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3650 * 24 * 3600);

/// What trust is made of.
#[derive(Clone, Debug)]
pub(crate) struct TrustConfig {
    pub(crate) state: StateDir,
    /// Where certificates come from.
    pub(crate) source: TrustSource,
    /// `--server-name`: what agents verify, whatever host they dial.
    pub(crate) server_name: String,
    /// Hosts of `--advertise`: in the proxy's certificate too, for CONNECT callers that verify the host they dial.
    pub(crate) hosts: Vec<String>,
    /// `--certificate-lifetime`: how long agents' certificates are valid.
    pub(crate) certificate_lifetime: Duration,
}

/// Why trust cannot be set up, or a certificate not be given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("use the certificate in {what}")]
    Tls { what: String, source: rustls::Error },
    #[error("use the authorities of client certificates in {what}")]
    Verifier { what: String, source: rustls::server::VerifierBuilderError },
    #[error("the certificate in {file} is not for the name {name:?}: give a name that it has with --server-name")]
    ServerName { file: String, name: String },
    #[error("{0:?} is no server name: give a DNS name with --server-name")]
    ServerNameText(String),
    #[error("a certificate lifetime of {} s is not possible: --certificate-lifetime takes 1s to 3650d", .0.as_secs())]
    Lifetime(Duration),
    #[error(
        "{file} has an authority of the agents: any edge node could dial any other with its own certificate. Give CONNECT clients an authority of their own with --connect-client-ca"
    )]
    SharedAuthority { file: String },
    #[error(
        "this proxy uses ready certificates (--tls-cert, --tls-key, --agent-ca) and cannot make any: give the agent its certificate with --cert, --key and --ca, or start the proxy with --ca-cert and --ca-key"
    )]
    NoAuthority,
}

/// A certificate for an agent, and what it needs to trust proxies.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) chain_pem: String,
    pub(crate) ca_pem: String,
}

/// Trust. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Trust(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: TrustConfig,
    directory: Directory,
    identity: ServerIdentity,
    agent_config: ArcSwap<ServerConfig>,
    material: Mutex<Material>,
    ledger: RwLock<Ledger>,
    /// Held while the ledger is changed and written; who only reads it does not wait for the disk.
    ledger_change: Mutex<()>,
    /// Certificates were seen that the ledger on disk does not have yet.
    unwritten: AtomicBool,
    steady: SteadyClock,
    admission: Mutex<()>,
}

/// How long proxies have run on this state, which no jump of a wall clock changes.
#[derive(Debug)]
struct SteadyClock {
    started: Instant,
    before: Duration,
}

impl Trust {
    /// Reads or makes what the source says.
    pub(crate) fn open(config: TrustConfig, directory: Directory) -> Result<Self, TrustError> {
        if !LIFETIMES.contains(&config.certificate_lifetime) {
            return Err(TrustError::Lifetime(config.certificate_lifetime));
        }
        if !matches!(ServerName::try_from(config.server_name.as_str()), Ok(ServerName::DnsName(_))) {
            return Err(TrustError::ServerNameText(config.server_name));
        }
        let now = UnixTime::now();
        let mut ledger: Ledger = config.state.read(CERTIFICATES)?.unwrap_or_default();
        ledger.prune(now);
        let steady = SteadyClock { started: Instant::now(), before: ledger.served() };
        let (material, certificate) = Material::load(&config, now)?;
        let tls = |source| TrustError::Tls { what: config.source.to_string(), source };
        let identity = ServerIdentity::new(certificate).map_err(tls)?;
        let agent_config = ArcSwap::from_pointee(agent_config(&config, &identity, &material)?);
        Ok(Self(Arc::new(Shared {
            config,
            directory,
            identity,
            agent_config,
            material: Mutex::new(material),
            ledger: RwLock::new(ledger),
            ledger_change: Mutex::default(),
            unwritten: AtomicBool::default(),
            steady,
            admission: Mutex::default(),
        })))
    }

    /// For the agent port: take it anew for each connection, for it changes with the files it is made of.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        self.0.agent_config.load_full()
    }

    /// For the CONNECT listener: TLS with the proxy's certificate and a required client certificate of an authority in the file.
    pub(crate) fn caller_config(&self, client_ca: &Path) -> Result<Arc<ServerConfig>, TrustError> {
        let authorities = crate::authority::read_certificates(client_ca)?;
        let agents = public_keys(self.material().authorities());
        if public_keys(&authorities).iter().any(|key| agents.contains(key)) {
            return Err(TrustError::SharedAuthority { file: client_ca.display().to_string() });
        }
        let failed = |source| TrustError::Verifier { what: client_ca.display().to_string(), source };
        handshake::caller_config(&self.0.identity, &authorities, agents).map(Arc::new).map_err(failed)
    }

    /// The node that the owner of this verified chain is.
    pub(crate) fn identify(&self, chain: &[CertificateDer<'_>], purpose: Purpose) -> Result<NodeName, IdentityError> {
        let leaf = Leaf::read(chain.first().ok_or(IdentityError::NoCertificate)?)?;
        let node = leaf.node()?;
        let standing = self.ledger().standing(&node, &leaf.serial, leaf.not_after);
        if standing == Standing::Revoked {
            return Err(IdentityError::Revoked { node });
        }
        if !self.0.directory.contains(&node) {
            return Err(IdentityError::UnknownNode { node });
        }
        let now = UnixTime::now();
        leaf.timely(&node, purpose, now)?;
        match standing {
            Standing::New => self.note(node, leaf, now),
            Standing::Known | Standing::Revoked => Ok(node),
        }
    }

    /// Held while somebody is admitted or a node removed, so that no certificate is made of what was true a moment ago.
    pub(crate) fn admission(&self) -> MutexGuard<'_, ()> {
        self.0.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a certificate for the node, which showed `shown` for it. It is noted on disk before anybody has it.
    pub(crate) fn issue(
        &self,
        node: &NodeName,
        key: &ProvenKey,
        shown: &[CertificateDer<'_>],
    ) -> Result<Issued, TrustError> {
        let now = UnixTime::now();
        let in_use = shown.first().and_then(|leaf| Leaf::read(leaf).ok()).map(|leaf| leaf.serial);
        let (made, ca_pem) = {
            let material = self.material();
            let authority = material.authority().ok_or(TrustError::NoAuthority)?;
            let lifetime = self.0.config.certificate_lifetime;
            (authority.node_certificate(node, key, lifetime, now)?, authority.pem().to_owned())
        };
        self.change_ledger(|ledger| {
            ledger.prune(now);
            ledger.note(node, (made.serial.clone(), made.expires), in_use.as_ref(), now);
        })?;
        Ok(Issued { chain_pem: made.pem, ca_pem })
    }

    /// Revokes all certificates that the node has now: at once, and if that cannot be written, until this process ends.
    pub(crate) fn revoke(&self, node: &NodeName) -> Result<(), TrustError> {
        let now = UnixTime::now();
        let _change = self.ledger_change();
        let ledger = {
            let mut ledger = self.ledger_mut();
            ledger.set_served(self.served());
            ledger.revoke(node, now + self.0.config.certificate_lifetime, now);
            ledger.clone()
        };
        Ok(self.0.config.state.write(CERTIFICATES, &ledger)?)
    }

    /// What agents check when they join; an error if this proxy cannot enrol any.
    pub(crate) fn pin(&self) -> Result<String, TrustError> {
        self.material().authority().map(crate::authority::Authority::pin).ok_or(TrustError::NoAuthority)
    }

    /// The authorities that agents trust for proxies, in PEM, if this proxy enrols any.
    pub(crate) fn authorities_pem(&self) -> Option<String> {
        self.material().authority().map(|authority| authority.pem().to_owned())
    }

    /// The certificates in use and whose they are: the proxy's own first, then the authorities of agents.
    pub(crate) fn certificates(&self) -> Vec<(&'static str, Leaf)> {
        let own = self.0.identity.present();
        let own = own.cert.first().map(|certificate| ("this proxy", certificate.clone()));
        let authorities = self.material().authorities().to_vec();
        let authorities = authorities.into_iter().map(|certificate| ("an authority of agents", certificate));
        own.into_iter().chain(authorities).filter_map(|(owner, der)| Some((owner, Leaf::read(&der).ok()?))).collect()
    }

    /// The directory that says which nodes there are.
    pub(crate) fn directory(&self) -> &Directory {
        &self.0.directory
    }

    /// The name in the proxy's certificate that agents verify.
    pub(crate) fn server_name(&self) -> &str {
        &self.0.config.server_name
    }

    /// Renews the proxy's own certificate in time, takes up given files when they change and writes down what was noted, until the
    /// drain begins.
    pub(crate) async fn maintain(self, drain: Drain) -> anyhow::Result<()> {
        let mut problem = Problem::default();
        loop {
            let last = tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => false,
                () = drain.begun() => true,
            };
            let trust = self.clone();
            let now_wrong = tokio::task::spawn_blocking(move || trust.tend(UnixTime::now())).await?.err();
            let now_wrong = now_wrong.map(|error| culvert_daemon::chain(&error));
            if let Some(reason) = problem.news(now_wrong) {
                tracing::error!(reason, "certificates not refreshed or not noted, keeping those in use");
            }
            if last {
                return Ok(());
            }
        }
    }

    fn tend(&self, now: UnixTime) -> Result<(), TrustError> {
        let written = self.write_noted();
        self.refresh(now).and(written)
    }

    fn refresh(&self, now: UnixTime) -> Result<(), TrustError> {
        if !self.material().is_due(&self.0.config, now)? {
            return Ok(());
        }
        let config = &self.0.config;
        let (material, certificate) = Material::load(config, now)?;
        let tls = |source| TrustError::Tls { what: config.source.to_string(), source };
        let agent_config = agent_config(config, &self.0.identity, &material)?;
        self.0.identity.replace(certificate).map_err(tls)?;
        self.0.agent_config.store(Arc::new(agent_config));
        *self.material() = material;
        tracing::info!(source = %config.source, "proxy certificate renewed");
        Ok(())
    }

    /// Notes a certificate that somebody else made, at once for who removes its node, and a moment later on disk, together with
    /// others: thousands may come at the same time, and are seen again should this process end before.
    fn note(&self, node: NodeName, leaf: Leaf, now: UnixTime) -> Result<NodeName, IdentityError> {
        let mut ledger = self.ledger_mut();
        // The node may have been removed since somebody looked.
        if ledger.standing(&node, &leaf.serial, leaf.not_after) == Standing::Revoked {
            return Err(IdentityError::Revoked { node });
        }
        ledger.note(&node, (leaf.serial, leaf.not_after), None, now);
        self.0.unwritten.store(true, Ordering::Release);
        Ok(node)
    }

    fn write_noted(&self) -> Result<(), TrustError> {
        if !self.0.unwritten.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        let written = self.change_ledger(|_as_it_is| {});
        if written.is_err() {
            self.0.unwritten.store(true, Ordering::Release);
        }
        written
    }

    /// Changes the ledger once that is on disk. What was noted meanwhile stays.
    fn change_ledger(&self, edit: impl Fn(&mut Ledger)) -> Result<(), TrustError> {
        let _change = self.ledger_change();
        let edit = |ledger: &mut Ledger| {
            ledger.set_served(self.served());
            edit(ledger);
        };
        let mut next = self.ledger().clone();
        edit(&mut next);
        self.0.config.state.write(CERTIFICATES, &next)?;
        edit(&mut self.ledger_mut());
        Ok(())
    }

    fn served(&self) -> Duration {
        self.0.steady.before.saturating_add(self.0.steady.started.elapsed())
    }

    fn ledger_change(&self) -> MutexGuard<'_, ()> {
        self.0.ledger_change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> RwLockReadGuard<'_, Ledger> {
        self.0.ledger.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger_mut(&self) -> RwLockWriteGuard<'_, Ledger> {
        self.0.ledger.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn material(&self) -> MutexGuard<'_, Material> {
        self.0.material.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn public_keys(certificates: &[CertificateDer<'_>]) -> Vec<Vec<u8>> {
    certificates.iter().filter_map(|der| Leaf::read(der).ok()).map(|certificate| certificate.public_key).collect()
}

fn agent_config(
    config: &TrustConfig,
    identity: &ServerIdentity,
    material: &Material,
) -> Result<ServerConfig, TrustError> {
    let failed = |source| TrustError::Verifier { what: config.source.to_string(), source };
    handshake::agent_config(identity, material.authorities()).map_err(failed)
}

#[cfg(test)]
mod tests;
