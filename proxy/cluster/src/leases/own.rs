//! This proxy's own Lease: renewed while it runs, and deleted when it ends.
//!
//! Its name is that of the peer address, so a proxy that is started again takes over the Lease of
//! its predecessor, which may still drain. A proxy whose Lease was taken over takes it back only
//! after it was not renewed for its duration.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use culvert_daemon::{Backoff, Problem, chain};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use super::record::{Renewal, holder, name, renewed};
use super::{LASTS, OwnLease, RENEW_EVERY};
use crate::request::{RequestError, ask};

/// Attempts while another run of the proxy writes at the same time.
const ATTEMPTS: u32 = 4;

/// The reason why the Lease is not renewed or deleted.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("read the Lease {name}")]
    Read { name: String, source: RequestError },
    #[error("write the Lease {name}")]
    Write { name: String, source: RequestError },
    #[error("delete the Lease {name}")]
    Delete { name: String, source: RequestError },
    #[error("the Lease {name} was changed by others {ATTEMPTS} times in a row")]
    Busy { name: String },
}

pub(super) struct HeldLease {
    leases: Api<Lease>,
    own: OwnLease,
    name: String,
    /// As it was last written.
    written: Option<Lease>,
    /// Whether this proxy has had it: from then on it does not take it from a proxy that renews it.
    had: bool,
    /// The last renewal by another proxy, and when it was first seen.
    rival: Option<(Renewal, Instant)>,
}

impl HeldLease {
    pub(super) fn new(leases: Api<Lease>, own: OwnLease) -> Self {
        Self {
            leases,
            name: name(&own.address),
            own,
            written: None,
            had: false,
            rival: None,
        }
    }

    /// Renews it until it is dropped.
    pub(super) async fn renew_forever(
        &mut self,
        tunnels: &(impl Fn() -> u32 + Sync),
    ) -> Infallible {
        let mut problem = Problem::default();
        let mut backoff = retries();
        loop {
            let renewed = self.renew(tunnels()).await;
            let wait = if renewed.is_ok() {
                backoff.reset();
                RENEW_EVERY
            } else {
                // Others could not renew theirs either.
                self.rival = None;
                backoff.wait()
            };
            let now_wrong = renewed.err().map(|error| chain(&error));
            if let Some(reason) = problem.record(now_wrong) {
                tracing::warn!(
                    reason,
                    "this proxy's Lease is not renewed: other proxies may forget it"
                );
            }
            tokio::time::sleep(wait).await;
        }
    }

    async fn renew(&mut self, tunnels: u32) -> Result<(), LeaseError> {
        for _ in 0..ATTEMPTS {
            let found = match self.written.take() {
                Some(written) => Some(written),
                None => self.read().await?,
            };
            if let Some(found) = &found
                && !self.may_write(found)
            {
                return Ok(());
            }
            let is_replaced = found.is_some();
            match write(&self.leases, &renewed(found, &self.own, tunnels)).await {
                Ok(written) => {
                    self.written = Some(written);
                    (self.had, self.rival) = (true, None);
                    return Ok(());
                }
                Err(error) if error.is_conflict() || is_replaced && error.is_absent() => {}
                Err(source) => {
                    let name = self.name.clone();
                    return Err(LeaseError::Write { name, source });
                }
            }
        }
        Err(LeaseError::Busy {
            name: self.name.clone(),
        })
    }

    /// Whether it is this proxy's, or is not renewed, or this proxy has just started.
    fn may_write(&mut self, found: &Lease) -> bool {
        if !self.had || self.is_own(found) {
            return true;
        }
        let renewal = Renewal::from(found);
        let now = Instant::now();
        let since = match self.rival.take() {
            Some((last, since)) if last == renewal => since,
            Some(_) => now,
            None => {
                tracing::warn!(
                    lease = self.name,
                    peer = holder(found),
                    "another proxy has this proxy's Lease: it was started again, or has the same \
                     --peer-advertise"
                );
                now
            }
        };
        self.rival = Some((renewal, since));
        now.saturating_duration_since(since) >= LASTS
    }

    /// Deletes it, unless another proxy has it.
    pub(super) async fn release(mut self) {
        match self.delete().await {
            Ok(()) => {}
            Err(error) => tracing::warn!(
                reason = chain(&error),
                "this proxy's Lease stays until it ends by itself"
            ),
        }
    }

    async fn delete(&mut self) -> Result<(), LeaseError> {
        for _ in 0..ATTEMPTS {
            let found = match self.written.take() {
                Some(written) => Some(written),
                None => self.read().await?,
            };
            let own = match found {
                Some(found) if self.is_own(&found) => found,
                _ => return Ok(()),
            };
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: own.metadata.uid,
                resource_version: own.metadata.resource_version,
            });
            match ask(self.leases.delete(&self.name, &params)).await {
                Ok(_) => return Ok(()),
                // Another proxy has written to it, or this proxy's last request.
                Err(error) if error.is_conflict() => {}
                Err(error) if error.is_absent() => return Ok(()),
                Err(source) => {
                    let name = self.name.clone();
                    return Err(LeaseError::Delete { name, source });
                }
            }
        }
        Err(LeaseError::Busy {
            name: self.name.clone(),
        })
    }

    async fn read(&self) -> Result<Option<Lease>, LeaseError> {
        let found = ask(self.leases.get_opt(&self.name)).await;
        found.map_err(|source| LeaseError::Read {
            name: self.name.clone(),
            source,
        })
    }

    fn is_own(&self, lease: &Lease) -> bool {
        holder(lease) == Some(self.own.instance.to_string().as_str())
    }
}

/// The pauses after failures: after an outage of the API server each proxy renews its Lease before
/// others forget it.
fn retries() -> Backoff {
    Backoff::new(Duration::from_secs(1), RENEW_EVERY)
}

/// Replaces the Lease if it is still the version that was read, or creates it if there was none.
async fn write(leases: &Api<Lease>, lease: &Lease) -> Result<Lease, RequestError> {
    let parameters = PostParams::default();
    match &lease.metadata.resource_version {
        Some(_) => {
            let name = lease.metadata.name.as_deref().unwrap_or_default();
            ask(leases.replace(name, &parameters, lease)).await
        }
        None => ask(leases.create(&parameters, lease)).await,
    }
}
