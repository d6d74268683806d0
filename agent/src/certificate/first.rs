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
///
/// # Errors
/// A state directory that cannot be used.
pub(crate) async fn certificates(
    source: ClusterSource,
    outbound: &Outbound,
    gate: &Gate,
    drain: &Drain,
) -> Result<Option<Certificates>> {
    source.state.prepare()?;
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
                    return Ok(Some(certificates));
                }
                Err(error) => tracing::debug!(
                    reason = culvert_daemon::chain(&error),
                    "no usable certificate stored"
                ),
            }
        }
        let enrolled = tokio::select! {
            enrolled = enrol(&source, outbound) => enrolled,
            () = drain.begun() => return Ok(None),
        };
        let reason = match enrolled {
            Ok((node, renewed)) => match started(&source, renewed) {
                Ok(certificates) => {
                    tracing::info!(%node, "enrolled with the service account's token");
                    return Ok(Some(certificates));
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
            () = drain.begun() => return Ok(None),
        }
    }
}

/// The certificate that was just given, stored or, if an older one is, in memory for now.
fn started(source: &ClusterSource, renewed: Renewed) -> Result<Certificates> {
    let stored = source.state.store(&renewed);
    let loaded = Certificates::load(Source::Cluster(source.clone()));
    match (stored, loaded) {
        (Ok(()), loaded) => Ok(loaded?),
        (Err(_), Ok(certificates)) => {
            if let Some(error) = certificates.use_renewed(renewed)? {
                let reason = culvert_daemon::chain(&error);
                tracing::warn!(reason, "the certificate is in use and not stored");
            }
            Ok(certificates)
        }
        (Err(error), Err(_)) => Err(error.into()),
    }
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
            "the stored certificate is of another node: enrolling anew"
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
    let key = source.state.next_key()?;
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
