//! Enrolment with the pod's service-account token: at the first start, and when a certificate can
//! be renewed no more.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use culvert_api::{ALPN_ENROLL, HostPort, NodeName};
use culvert_daemon::{Backoff, Drain, Gate, Problem};
use rcgen::KeyPair;
use rustls::pki_types::ServerName;

use crate::certificate::calls::{self, Credential, Enrolled};
use crate::certificate::cluster::account_token::AccountToken;
use crate::certificate::cluster::config::ClusterSettings;
use crate::certificate::current::{Certificates, ClusterSource, Source};
use crate::certificate::store::{Joined, Renewed};
use crate::dial::connect::connect;
use crate::dial::outbound::{Outbound, in_any_order};
use crate::dial::tls;
use crate::identity;

/// First and longest wait before the next attempt to get the first certificate: a proxy may be
/// starting too.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Waits until there is a certificate: the stored one if it may still be used, or one from a proxy.
/// None if the drain begins first.
pub(crate) async fn certificates(
    source: ClusterSource,
    outbound: &Outbound,
    gate: &Gate,
    drain: &Drain,
) -> Option<Certificates> {
    if let Err(error) = source.state.prepare() {
        let reason = culvert_daemon::chain(&error);
        tracing::warn!(
            reason,
            "the certificate will not be stored: see --state-dir"
        );
    }
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LONGEST);
    let mut problem = Problem::default();
    loop {
        if is_ours(&source) {
            match Certificates::load(Source::Cluster(source.clone())) {
                Ok(certificates) => {
                    tracing::info!(
                        node = %certificates.current().node,
                        "the stored certificate is still good"
                    );
                    return Some(certificates);
                }
                Err(error) => tracing::debug!(
                    reason = culvert_daemon::chain(&error),
                    "no usable certificate stored"
                ),
            }
        }
        let enrolled = tokio::select! {
            enrolled = enrol(&source, outbound) => enrolled,
            () = drain.begun() => return None,
        };
        let reason = match enrolled {
            Ok((node, renewed)) => match started(&source, renewed) {
                Ok(certificates) => {
                    tracing::info!(%node, "enrolled with the service account's token");
                    return Some(certificates);
                }
                Err(error) => format!("{error:#}"),
            },
            Err(error) => format!("{error:#}"),
        };
        if let Some(reason) = problem.record(Some(reason)) {
            tracing::warn!(reason, "not enrolled yet; trying again");
            gate.close(reason);
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.wait()) => {}
            () = drain.begun() => return None,
        }
    }
}

/// The certificate that was just given, stored or, on a disk that takes nothing, in memory for now:
/// an operator who frees that disk has to reach this node.
fn started(source: &ClusterSource, renewed: Renewed) -> Result<Certificates> {
    let stored = source.state.store(&renewed);
    let loaded = Certificates::load(Source::Cluster(source.clone()));
    let (error, certificates) = match (stored, loaded) {
        (Ok(()), loaded) => return Ok(loaded?),
        (Err(_), Ok(certificates)) => match certificates.use_renewed(renewed)? {
            Some(error) => (error, certificates),
            None => return Ok(certificates),
        },
        (Err(error), Err(_)) => (error, Certificates::unsaved_of(source.clone(), renewed)?),
    };
    let reason = culvert_daemon::chain(&error);
    tracing::warn!(reason, "the certificate is in use and not stored");
    Ok(certificates)
}

/// Whether the stored certificate may be used: there is one, it has not ended, and the token does
/// not name another node.
fn is_ours(source: &ClusterSource) -> bool {
    let Ok(text) = source.state.identity() else {
        return false;
    };
    let Ok(identity) = text.parse() else {
        return false;
    };
    if let Ok(token) = source.token.read()
        && let Some(node) = token.node
        && node != identity.node.as_str()
    {
        tracing::info!(
            node,
            was = %identity.node,
            "the stored certificate is of another node: enrolling again"
        );
        return false;
    }
    std::time::SystemTime::now() < identity.validity.not_after
}

/// Enrols at any proxy that gives a certificate.
///
/// # Errors
/// Every proxy's reason, if none gave one.
pub(crate) async fn enrol(
    source: &ClusterSource,
    outbound: &Outbound,
) -> Result<(NodeName, Renewed)> {
    let settings = source.settings()?;
    let token = source.token.read()?;
    let key = source.state.next_key_or_unsaved()?;
    let mut reasons = Vec::new();
    for proxy in &in_any_order(settings.proxies.clone()) {
        match enrol_at(proxy, &settings, &token, outbound, &key).await {
            Ok(enrolled) => {
                let joined = Joined {
                    server_name: enrolled.text.server_name.clone(),
                    proxies: settings.proxies,
                    pod: token.pod,
                };
                let renewed = Renewed {
                    text: enrolled.text,
                    joined,
                };
                return Ok((enrolled.identity.node, renewed));
            }
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    Err(anyhow!("{}", reasons.join("\n  also: ")))
}

async fn enrol_at(
    proxy: &HostPort,
    settings: &ClusterSettings,
    token: &AccountToken,
    outbound: &Outbound,
    key: &KeyPair,
) -> Result<Enrolled> {
    let server_name = ServerName::try_from(settings.server_name.clone())
        .with_context(|| format!("server name {:?}", settings.server_name))?;
    let config = tls::trusting(identity::roots(&settings.ca)?, ALPN_ENROLL);
    let connection = connect(outbound, proxy, config, &server_name).await?;
    let credential = Credential::ServiceAccount(&token.token);
    let joined = calls::join(connection, credential, key, &settings.server_name);
    joined.await.with_context(|| format!("proxy {proxy}"))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use culvert_api::PROXY_SERVER_NAME;
    use culvert_api::agent_config::{CA, PROXIES, SERVER_NAME};
    use culvert_daemon::{Readiness, Supervisor};

    use super::*;
    use crate::certificate::cluster::account_token::TokenFile;
    use crate::certificate::cluster::config::ClusterDir;
    use crate::certificate::store::StateDir;
    use crate::test_proxy::TestProxy;

    /// What a pod of edge-1 has, with the state directory `state`.
    fn pod(folder: &Path, proxy: &TestProxy, state: &Path) -> ClusterSource {
        for (name, text) in [
            (CA, proxy.authority.pem()),
            (SERVER_NAME, PROXY_SERVER_NAME.to_owned()),
            (PROXIES, proxy.address.to_string()),
            ("token", "good-edge-1".to_owned()),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        ClusterSource {
            state: StateDir::new(state),
            folder: ClusterDir::new(folder),
            token: TokenFile::new(&folder.join("token")),
            server_name: None,
            proxies: Vec::new(),
        }
    }

    async fn enrolled(source: ClusterSource) -> Certificates {
        let outbound = Outbound::from_environment(|_| None).unwrap();
        let gate = Readiness::default().gate("certificate");
        let supervisor = Supervisor::new(Duration::ZERO).unwrap();
        let drain = supervisor.drain();
        let first = certificates(source, &outbound, &gate, &drain).await;
        let certificates = first.unwrap();
        let validity = certificates.current().validity;
        assert!(std::time::SystemTime::now() < validity.not_after);
        certificates
    }

    /// Lets no file be written, as on a full disk.
    fn fill(state: &Path) -> Vec<PathBuf> {
        let names = ["next-key.pem", "ca.pem", "joined.json", "identity.pem"];
        let in_the_way = names.map(|name| state.join(format!(".{name}.new")));
        for path in &in_the_way {
            std::fs::create_dir(path).unwrap();
        }
        in_the_way.into()
    }

    #[tokio::test]
    async fn a_new_pod_on_a_full_disk_enrols_and_its_certificate_is_stored_later() {
        let proxy = TestProxy::start().await;
        let folder = tempfile::tempdir().unwrap();
        let state = tempfile::tempdir().unwrap();
        let in_the_way = fill(state.path());
        let source = pod(folder.path(), &proxy, state.path());
        let certificates = enrolled(source.clone()).await;
        assert!(certificates.is_unsaved() && source.state.identity().is_err());
        let chain = certificates.refresh().chain.clone();

        for path in in_the_way {
            std::fs::remove_dir(path).unwrap();
        }
        assert_eq!(certificates.refresh().chain, chain);
        assert!(!certificates.is_unsaved());
        let stored = source.state.identity().unwrap().parse().unwrap();
        assert_eq!(stored.chain, chain);
    }

    #[tokio::test]
    async fn an_expired_certificate_on_a_full_disk_gives_way_to_a_new_one() {
        let proxy = TestProxy::start().await;
        let folder = tempfile::tempdir().unwrap();
        let state = tempfile::tempdir().unwrap();
        let source = pod(folder.path(), &proxy, state.path());
        let expired = proxy.expired_identity("edge-1");
        source.state.store_join(&expired, &[]).unwrap();
        fill(state.path());
        let certificates = enrolled(source.clone()).await;
        assert!(certificates.is_unsaved());
        assert!(
            source.state.identity().unwrap() == expired,
            "nothing is stored"
        );
    }

    #[tokio::test]
    async fn a_pod_without_a_state_directory_enrols() {
        let proxy = TestProxy::start().await;
        let folder = tempfile::tempdir().unwrap();
        let source = pod(folder.path(), &proxy, &folder.path().join("token/agent"));
        assert!(enrolled(source).await.is_unsaved());
    }
}
