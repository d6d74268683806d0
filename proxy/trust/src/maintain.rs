//! Keeps the proxy's own certificate, the given files and the ledger on disk up to date.

use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::{Drain, Problem};
use culvert_proxy_core::clock::UnixTime;

use super::source::Material;
use super::tls::agent_config;
use super::{Trust, TrustError};

/// The interval of checks for changed files and for the end of the proxy's own certificate.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

impl Trust {
    /// Renews the proxy's own certificate in time, reloads given files when they change and writes
    /// the noted certificates, until the drain begins.
    pub async fn maintain(self, drain: Drain) -> anyhow::Result<()> {
        let mut problem = Problem::default();
        loop {
            let last = tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => false,
                () = drain.begun() => true,
            };
            let trust = self.clone();
            let now_wrong = tokio::task::spawn_blocking(move || trust.tend(UnixTime::now()))
                .await?
                .err();
            let now_wrong = now_wrong.map(|error| culvert_daemon::chain(&error));
            if let Some(reason) = problem.record(now_wrong) {
                tracing::error!(
                    reason,
                    "certificates not refreshed or not noted, keeping those in use"
                );
            }
            if last {
                return Ok(());
            }
        }
    }

    pub(super) fn tend(&self, now: UnixTime) -> Result<(), TrustError> {
        let written = self.write_ledger();
        let refreshed = self.refresh(now);
        self.refresh_callers().and(refreshed).and(written)
    }

    fn refresh_callers(&self) -> Result<(), TrustError> {
        let Some(callers) = self.lock_callers().clone() else {
            return Ok(());
        };
        let agents = self.material().authorities().to_vec();
        callers.refresh(&self.0.identity, &agents)
    }

    pub(super) fn refresh(&self, now: UnixTime) -> Result<(), TrustError> {
        if !self.material().is_due(&self.0.config, now)? {
            return Ok(());
        }
        let config = &self.0.config;
        let (material, certificate) = Material::load(config, now)?;
        let agent_config = agent_config(config, &self.0.identity, &material)?;
        let replaced = self.0.identity.replace(certificate);
        replaced.map_err(|source| TrustError::Tls {
            what: config.source.to_string(),
            source,
        })?;
        self.0.agent_config.store(Arc::new(agent_config));
        *self.material() = material;
        tracing::info!(source = %config.source, "proxy certificate renewed");
        Ok(())
    }

    /// Writes what the ledger on disk lacks, together. When this returns, what was changed before
    /// is there, whichever task wrote it.
    pub fn write_ledger(&self) -> Result<(), TrustError> {
        let mut file = self.ledger_file();
        let changed = {
            let mut ledger = self.ledger_mut();
            if !ledger.is_unwritten() {
                return Ok(());
            }
            ledger.set_served(self.served());
            if file.is_due() {
                ledger.prune(self.grace(), UnixTime::now());
            }
            ledger.take_unwritten()
        };
        let written = if file.is_due() {
            file.replace(&self.ledger())
        } else {
            file.append(&self.ledger(), &changed)
        };
        if written.is_err() {
            self.ledger_mut().not_written(changed);
        }
        Ok(written?)
    }
}
