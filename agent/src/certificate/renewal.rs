//! Keeps the certificate fresh: looks at its files, renews it in time, and says when it ends.
//! Tunnels go on meanwhile; the next ones use the new certificate.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, ensure};
use culvert_api::{ALPN_ENROLL, HostPort};
use culvert_daemon::{Backoff, Drain, Gate, Problem};
use tokio::sync::{Notify, watch};

use crate::certificate::current::{Certificates, ClusterSource};
use crate::certificate::store::{Renewed, StateDir};
use crate::certificate::{calls, first};
use crate::dial::connect::connect;
use crate::dial::outbound::{Outbound, in_any_order};
use crate::dial::tls;
use crate::identity::{Identity, Validity};
use crate::metrics::{Metrics, RenewalOutcome};

/// How often files and clock are looked at. A sleep until the renewal would miss a suspended
/// machine and a changed clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// First and longest wait after a renewal that failed.
const RETRY_FIRST: Duration = Duration::from_secs(10);
const RETRY_LONGEST: Duration = Duration::from_secs(600);

/// Enrolments while a certificate is there that should do: each costs the API server a question.
const ANEW_EVERY: Duration = Duration::from_secs(60);

/// What happens to a certificate on a full disk.
const NOT_STORED: &str =
    "it is not stored: free the disk before this agent is restarted; trying again";

/// What to do besides renewing in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalCause {
    WhenDue,
    /// A proxy refused the certificate: enrol with the token, in a cluster.
    Refused,
}

/// The task that keeps the certificate fresh.
pub(crate) struct Renewal {
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) outbound: Arc<Outbound>,
    /// Where to renew, and to keep tunnels; followed here in a cluster.
    pub(crate) proxies: watch::Sender<Vec<HostPort>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gate: Gate,
    /// Notified when a proxy refuses the certificate.
    pub(crate) refused: Arc<Notify>,
}

/// When the next renewal may be, after failures in a row. Not by the clock, which may be the
/// reason: set right, it could be years until then.
#[derive(Debug)]
struct Failures {
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            not_before: None,
        }
    }
}

impl Failures {
    fn add(&mut self, now: Instant) {
        self.not_before = Some(now + self.backoff.wait());
    }

    fn over(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|not_before| not_before <= now)
    }
}

impl Renewal {
    /// Runs until the drain begins.
    ///
    /// # Errors
    /// In a cluster, when this agent turns out to be on another node than before: it has to start
    /// over.
    pub(crate) async fn run(self, drain: Drain) -> Result<()> {
        let mut failures = Failures::default();
        let mut cause = RenewalCause::WhenDue;
        let mut last_anew: Option<Instant> = None;
        let mut problem = Problem::default();
        // One throw for the process' life spreads the nodes that joined together.
        let chance = rand::random();
        loop {
            let identity = self.certificates.refresh();
            self.report(identity.validity, SystemTime::now());
            self.follow_proxies(&mut problem);
            if let Some(cluster) = self.certificates.cluster()
                && (cause == RenewalCause::Refused || self.is_of_another_pod(cluster))
                && last_anew.is_none_or(|last| last.elapsed() >= ANEW_EVERY)
            {
                last_anew = Some(Instant::now());
                cause = RenewalCause::WhenDue;
                tokio::select! {
                    done = self.enrol_again(&identity, cluster, &mut failures) => { done?; continue }
                    () = drain.begun() => return Ok(()),
                }
            }
            if let Some(state) = self.certificates.renewable() {
                let due = due(identity.validity, self.certificates.stored_at(), chance);
                if due <= SystemTime::now() && failures.over(Instant::now()) {
                    tokio::select! {
                        done = self.renew(&identity, state, &mut failures) => { done?; continue }
                        () = drain.begun() => return Ok(()),
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.refused.notified() => cause = RenewalCause::Refused,
                () = drain.begun() => return Ok(()),
            }
        }
    }

    /// Takes up where the cluster says that the proxies are. A folder that cannot be read leaves
    /// them as they were.
    fn follow_proxies(&self, problem: &mut Problem) {
        let Some(cluster) = self.certificates.cluster() else {
            return;
        };
        let now_wrong = match cluster.settings() {
            Ok(settings) => {
                self.proxies.send_if_modified(|proxies| {
                    let before = std::mem::replace(proxies, settings.proxies);
                    before != *proxies
                });
                None
            }
            Err(error) => Some(culvert_daemon::chain(&error)),
        };
        if let Some(reason) = problem.record(now_wrong) {
            tracing::warn!(
                reason,
                "the cluster's settings cannot be read; the last ones stay in use"
            );
        }
        if self.proxies.borrow().is_empty()
            && let Ok(joined) = cluster.state.joined()
        {
            self.proxies.send_replace(joined.proxies);
        }
    }

    /// Enrols with the pod's token, because the proxies do not take the certificate or the pod is
    /// another one.
    async fn enrol_again(
        &self,
        identity: &Identity,
        cluster: &ClusterSource,
        failures: &mut Failures,
    ) -> Result<()> {
        match first::enrol(cluster, &self.outbound).await {
            Ok((node, renewed)) => {
                *failures = Failures::default();
                tracing::info!(%node, "enrolled again with the service account's token");
                self.install_renewed(renewed)?;
                ensure!(
                    node == identity.node,
                    "this agent was {} and is {node} now: it ends, to be started again",
                    identity.node
                );
            }
            Err(error) => {
                self.metrics.record_renewal(RenewalOutcome::Failed);
                tracing::warn!(
                    node = %identity.node,
                    reason = format!("{error:#}"),
                    "not enrolled again; trying again"
                );
                failures.add(Instant::now());
            }
        }
        Ok(())
    }

    fn report(&self, validity: Validity, now: SystemTime) {
        self.metrics.set_certificate_end(validity.not_after);
        let is_unsaved = self.certificates.is_unsaved();
        let remark = is_unsaved.then(|| format!("in use; {NOT_STORED}"));
        self.gate.remark(remark);
        if now <= validity.not_after {
            self.gate.open();
        } else if self.certificates.renewable().is_some() {
            self.gate.close("ended; being renewed");
        } else {
            self.gate
                .close("ended; replace the files of --cert and --key");
        }
    }

    /// Renews at any proxy that does so; where none does, a cluster's agent enrols again.
    async fn renew(
        &self,
        identity: &Identity,
        state: &StateDir,
        failures: &mut Failures,
    ) -> Result<()> {
        let proxies = self.proxies.borrow().clone();
        for proxy in &in_any_order(proxies) {
            match self.renew_at(proxy, identity, state).await {
                Ok(()) => {
                    *failures = Failures::default();
                    tracing::info!(node = %identity.node, proxy = %proxy, "certificate renewed");
                    return Ok(());
                }
                Err(error) => {
                    self.metrics.record_renewal(RenewalOutcome::Failed);
                    tracing::warn!(
                        node = %identity.node,
                        proxy = %proxy,
                        reason = format!("{error:#}"),
                        "certificate not renewed; trying again"
                    );
                }
            }
        }
        match self.certificates.cluster() {
            Some(cluster) => self.enrol_again(identity, cluster, failures).await,
            None => {
                failures.add(Instant::now());
                Ok(())
            }
        }
    }

    async fn renew_at(
        &self,
        proxy: &HostPort,
        identity: &Identity,
        state: &StateDir,
    ) -> Result<()> {
        let key = state.next_key()?;
        let config = tls::mutual(identity, ALPN_ENROLL)?;
        let connection = connect(&self.outbound, proxy, config, &identity.server_name).await?;
        let enrolled = calls::renew(connection, &key, &identity.server_name.to_str()).await?;
        ensure!(
            enrolled.identity.node == identity.node,
            "the proxy answered with a certificate of node {}",
            enrolled.identity.node
        );
        self.install_renewed(state.renewed(enrolled.text)?)
    }

    /// Uses a new certificate, stored or not.
    fn install_renewed(&self, renewed: Renewed) -> Result<()> {
        let outcome = match self.certificates.use_renewed(renewed)? {
            None => RenewalOutcome::Ok,
            Some(error) => {
                let reason = culvert_daemon::chain(&error);
                tracing::warn!(reason, "the certificate is in use; {NOT_STORED}");
                RenewalOutcome::NotStored
            }
        };
        self.metrics.record_renewal(outcome);
        Ok(())
    }

    /// Whether the token is of another pod than the one that the certificate was given for. Its
    /// node may be another too: the state may have come here with a copied disk.
    fn is_of_another_pod(&self, cluster: &ClusterSource) -> bool {
        let Ok(token) = cluster.token.read() else {
            return false;
        };
        match self.certificates.pod() {
            Some(pod) => token.pod != pod,
            None => false,
        }
    }
}

/// When to renew: after half to two thirds of the time that was left when the certificate was
/// stored, by `chance` (0 to 1). So nodes that joined together do not renew together, and a third of
/// the time is left for attempts. Counted from the storing, because certificates are backdated for
/// bad clocks.
fn due(validity: Validity, stored_at: Option<SystemTime>, chance: f64) -> SystemTime {
    let start = stored_at
        .unwrap_or(validity.not_before)
        .max(validity.not_before);
    match validity.not_after.duration_since(start) {
        Ok(total) => start + total.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 6.0),
        // Stored after its end, or a clock that was changed: now.
        Err(_) => validity.not_before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::current::Source;
    use crate::test_proxy::TestProxy;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * 1000 + DAY * days
    }

    fn days(from: u32, to: u32) -> Validity {
        Validity {
            not_before: at(from),
            not_after: at(to),
        }
    }

    #[test]
    fn renewals_spread_over_a_sixth_of_the_validity_and_a_third_is_left_then() {
        let validity = days(0, 31);
        let stored = Some(at(1));
        assert_eq!(due(validity, stored, 0.0), at(16));
        assert_eq!(due(validity, stored, 1.0), at(21));
    }

    #[test]
    fn a_short_certificate_that_was_backdated_is_not_renewed_at_once() {
        let stored = at(1);
        let validity = Validity {
            not_before: at(0),
            not_after: stored + Duration::from_secs(60),
        };
        assert_eq!(
            due(validity, Some(stored), 0.0),
            stored + Duration::from_secs(30)
        );
    }

    #[test]
    fn strange_clocks_renew_early_rather_than_late() {
        assert!(
            due(days(10, 40), Some(at(0)), 0.0) < at(40),
            "stored before it was valid"
        );
        assert!(
            due(days(0, 30), Some(at(50)), 0.0) < at(30),
            "stored after it ended"
        );
        assert!(
            due(days(0, 30), None, 1.0) < at(30),
            "no one knows when it was stored"
        );
    }

    fn renewal(proxy: &TestProxy, state: &StateDir) -> Renewal {
        let source = Source::Joined {
            state: state.clone(),
            server_name: None,
        };
        Renewal {
            certificates: Arc::new(Certificates::load(source).unwrap()),
            outbound: Arc::new(Outbound::from_environment(|_| None).unwrap()),
            proxies: watch::Sender::new(vec![proxy.address.clone()]),
            refused: Arc::default(),
            metrics: Arc::default(),
            gate: culvert_daemon::Readiness::default().gate("certificate"),
        }
    }

    /// The counter of renewals that are in use and not stored.
    fn not_stored(renewal: &Renewal) -> u64 {
        renewal.metrics.renewals(RenewalOutcome::NotStored)
    }

    #[tokio::test]
    async fn a_renewal_replaces_key_and_certificate_for_the_next_connection() {
        let proxy = TestProxy::start().await;
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::new(root.path());
        state
            .store_join(
                &proxy.identity("edge-1"),
                std::slice::from_ref(&proxy.address),
            )
            .unwrap();
        let renewal = renewal(&proxy, &state);
        let before = renewal.certificates.current();
        let mut failures = Failures::default();
        failures.add(Instant::now());
        renewal.renew(&before, &state, &mut failures).await.unwrap();
        let after = renewal.certificates.current();
        assert_eq!((failures.not_before, proxy.renewals()), (None, 1));
        assert_ne!(after.chain, before.chain);
        assert_ne!(after.key, before.key);
        assert_eq!(
            state.identity().unwrap().parse().unwrap().chain,
            after.chain
        );
    }

    #[tokio::test]
    async fn renewals_spread_over_the_proxies() {
        let first = TestProxy::start().await;
        let second = TestProxy::with_agents_of(first.authority.clone(), None).await;
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::new(root.path());
        state.store_join(&first.identity("edge-1"), &[]).unwrap();
        let renewal = renewal(&first, &state);
        let both = vec![first.address.clone(), second.address.clone()];
        renewal.proxies.send_replace(both);
        let mut failures = Failures::default();
        // With an even chance for each, all 40 meet the same proxy once in 2^39 runs.
        for _ in 0..40 {
            let identity = renewal.certificates.current();
            renewal
                .renew(&identity, &state, &mut failures)
                .await
                .unwrap();
        }
        assert!(first.renewals() > 0 && second.renewals() > 0);
        assert_eq!(first.renewals() + second.renewals(), 40);
    }

    #[tokio::test]
    async fn a_renewal_that_cannot_be_stored_is_used_and_stored_later() {
        let proxy = TestProxy::start().await;
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::new(root.path());
        state
            .store_join(
                &proxy.identity("edge-1"),
                std::slice::from_ref(&proxy.address),
            )
            .unwrap();
        let stored = state.identity().unwrap();
        // As on a full disk: nothing can be written.
        let in_the_way = ["next-key.pem", "ca.pem", "joined.json", "identity.pem"]
            .map(|name| root.path().join(format!(".{name}.new")));
        for path in &in_the_way {
            std::fs::create_dir(path).unwrap();
        }
        let readiness = culvert_daemon::Readiness::default();
        let mut renewal = renewal(&proxy, &state);
        renewal.gate = readiness.gate("certificate");
        let before = renewal.certificates.current();
        let mut failures = Failures::default();
        renewal.renew(&before, &state, &mut failures).await.unwrap();
        assert!(failures.over(Instant::now()));
        assert_eq!(not_stored(&renewal), 1);
        renewal.report(before.validity, SystemTime::now());
        assert_eq!(readiness.remarks().len(), 1, "{:?}", readiness.remarks());
        let after = renewal.certificates.current();
        assert_ne!(after.chain, before.chain, "the new certificate is in use");
        assert!(renewal.certificates.is_unsaved());
        assert!(state.identity().unwrap() == stored, "nothing is stored");
        assert_eq!(renewal.certificates.refresh().chain, after.chain);

        for path in &in_the_way {
            std::fs::remove_dir(path).unwrap();
        }
        assert_eq!(renewal.certificates.refresh().chain, after.chain);
        assert!(!renewal.certificates.is_unsaved());
        renewal.report(after.validity, SystemTime::now());
        assert_eq!((readiness.remarks(), not_stored(&renewal)), (vec![], 1));
        let stored = state.identity().unwrap().parse().unwrap();
        assert_eq!(stored.chain, after.chain);
    }

    #[test]
    fn a_failed_renewal_is_repeated_soon_whatever_the_clock_says() {
        let mut failures = Failures::default();
        let now = Instant::now();
        assert!(failures.over(now));
        failures.add(now);
        assert!(!failures.over(now) && failures.over(now + RETRY_FIRST));
    }
}
