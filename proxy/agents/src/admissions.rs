//! The certificates of open tunnels. The proxy checks them repeatedly and closes a tunnel whose
//! certificate expires, is revoked at any proxy, or belongs to a Node that was deleted. Time is
//! measured from the admission of the tunnel, so a jump of the host's clock ends no tunnel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_daemon::Drain;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_trust::Trust;
use culvert_proxy_trust::identity::{Credential, IdentityError};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The longest delay until a tunnel is closed. A check of ten thousand nodes takes some ten
/// milliseconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// All admissions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Admissions(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    admitted: HashMap<u64, Admitted>,
}

#[derive(Debug)]
struct Admitted {
    credential: Credential,
    /// The time of the admission, by the host's clock and by a clock that does not jump.
    since: (UnixTime, Instant),
    void_tx: oneshot::Sender<IdentityError>,
}

/// The admission of one tunnel. Dropping it ends the checks.
#[derive(Debug)]
pub(crate) struct Admission {
    all: Admissions,
    number: u64,
    void_rx: oneshot::Receiver<IdentityError>,
}

impl Admissions {
    /// Adds a tunnel that was admitted with the certificate.
    pub(crate) fn add(&self, credential: Credential) -> Admission {
        let since = (UnixTime::now(), Instant::now());
        let (void_tx, void_rx) = oneshot::channel();
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        state.admitted.insert(
            number,
            Admitted {
                credential,
                since,
                void_tx,
            },
        );
        Admission {
            all: self.clone(),
            number,
            void_rx,
        }
    }

    /// Checks periodically, and immediately after a certificate was revoked, here or at another
    /// proxy. Returns when the drain begins.
    pub async fn run(self, trust: Trust, drain: Drain) -> anyhow::Result<()> {
        let mut revocations = trust.revocation_changes();
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                // The sender is a part of the trust.
                _ = revocations.changed() => {}
                () = drain.begun() => return Ok(()),
            }
            self.check_all(&trust, Instant::now());
        }
    }

    fn check_all(&self, trust: &Trust, at: Instant) {
        let mut void = Vec::new();
        for (number, admitted) in &self.0.lock().admitted {
            if let Err(error) = admitted.check(trust, at) {
                void.push((*number, error));
            }
        }
        for (number, error) in void {
            if let Some(admitted) = self.0.lock().admitted.remove(&number) {
                // A tunnel that has just ended has no receiver.
                drop(admitted.void_tx.send(error));
            }
        }
    }
}

impl Admitted {
    fn check(&self, trust: &Trust, at: Instant) -> Result<(), IdentityError> {
        let (admitted_at, then) = self.since;
        let now = admitted_at + at.saturating_duration_since(then);
        trust.check(&self.credential, now)
    }
}

impl Admission {
    /// Completes when the certificate is no longer valid, with the reason.
    pub(crate) async fn void(&mut self) -> IdentityError {
        match (&mut self.void_rx).await {
            Ok(error) => error,
            // The sender exists until it has sent.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.all.0.lock().admitted.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use culvert_api::NodeName;
    use culvert_proxy_core::directory::Directory;
    use culvert_proxy_core::state::StateDir;
    use culvert_proxy_trust::identity::Serial;
    use culvert_proxy_trust::{TrustConfig, TrustSource};

    use super::*;

    #[tokio::test]
    async fn a_tunnel_ends_with_its_certificate_and_its_neighbours_go_on() {
        let path = tempfile::tempdir().unwrap();
        let node: NodeName = "edge-1".parse().unwrap();
        let directory =
            Directory::for_tests(&path.path().join("directory"), std::slice::from_ref(&node));
        let config = TrustConfig {
            state: StateDir::open(&path.path().join("trust")).unwrap(),
            source: TrustSource::Embedded,
            server_name: "culvert-proxy".to_owned(),
            hosts: Vec::new(),
            certificate_lifetime: Duration::from_secs(3600),
        };
        let trust = Trust::open(config, directory).unwrap();
        let now = UnixTime::now();
        let until = |not_after| Credential {
            node: node.clone(),
            serial: Serial::random(),
            not_before: now,
            not_after,
            binding: Some(culvert_proxy_trust::identity::Binding::default()),
        };
        let admissions = Admissions::default();
        let mut short = admissions.add(until(now + Duration::from_secs(60)));
        let mut long = admissions.add(until(now + Duration::from_secs(3600)));
        let gone = admissions.add(until(now));
        drop(gone);
        let start = Instant::now();
        admissions.check_all(&trust, start + Duration::from_secs(50));
        assert!(
            futures_util::poll!(Box::pin(short.void())).is_pending(),
            "not before its end"
        );
        admissions.check_all(&trust, start + Duration::from_secs(300));
        assert_eq!(short.void().await.reason(), "expired");
        assert!(futures_util::poll!(Box::pin(long.void())).is_pending());
        trust.revoke(&node).unwrap();
        admissions.check_all(&trust, Instant::now());
        assert_eq!(long.void().await.reason(), "revoked");
        assert!(admissions.0.lock().admitted.is_empty());
    }
}
