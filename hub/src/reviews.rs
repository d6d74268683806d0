//! How often the API server is asked whose a token is: as the node, whose requests kubelet needs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// At once. Each is a short request of the node's.
const AT_ONCE: usize = 16;
/// For how long a token is not reviewed again. Meanwhile one that the API server refused is refused
/// here: not for long, because it may accept the token later.
const REVIEWED_FOR: Duration = Duration::from_secs(10);
/// Reviewed tokens and addresses that are remembered; then the oldest goes.
const MAX_REVIEWED: usize = 4096;
const MAX_ADDRESSES: usize = 1024;
/// Reviews for one address: a pod has one or two tokens. Tokens of programs of the host have one
/// address together.
const PER_WINDOW: u32 = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// The API server does not accept a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// The questions that were asked.
#[derive(Debug)]
pub(crate) struct Reviews {
    at_once: Semaphore,
    history: Mutex<ReviewHistory>,
}

#[derive(Debug, Default)]
struct ReviewHistory {
    /// When a token without a known owner was reviewed, by its digest, and what the API server said.
    reviewed: BTreeMap<String, (Instant, Result<(), Refused>)>,
    windows: BTreeMap<IpAddr, Window>,
}

/// The questions of one address.
#[derive(Debug)]
struct Window {
    began: Instant,
    count: u32,
}

impl Default for Reviews {
    fn default() -> Self {
        Self {
            at_once: Semaphore::new(AT_ONCE),
            history: Mutex::default(),
        }
    }
}

impl Reviews {
    /// Waits until this token may be asked about. `None`: not now. The API server decides about the
    /// request itself, and nothing of its answer is remembered.
    pub(super) async fn permit(
        &self,
        digest: &str,
        address: IpAddr,
    ) -> Result<Option<SemaphorePermit<'_>>, Refused> {
        let may_ask = self
            .history
            .lock()
            .may_ask(digest, address, Instant::now())?;
        if !may_ask {
            return Ok(None);
        }
        // The semaphore is never closed.
        Ok(self.at_once.acquire().await.ok())
    }

    /// What the API server says of a token whose owner is not remembered.
    pub(super) fn record(&self, digest: &str, said: Result<(), Refused>) {
        self.history.lock().record(digest, said, Instant::now());
    }
}

impl ReviewHistory {
    fn may_ask(&mut self, digest: &str, address: IpAddr, now: Instant) -> Result<bool, Refused> {
        match self.reviewed.get(digest) {
            Some((at, said)) if now.duration_since(*at) < REVIEWED_FOR => {
                return said.map(|()| false);
            }
            Some(_) => drop(self.reviewed.remove(digest)),
            None => {}
        }
        if self.windows.len() >= MAX_ADDRESSES {
            self.windows
                .retain(|_, window| now.duration_since(window.began) < WINDOW);
        }
        let new = Window {
            began: now,
            count: 0,
        };
        let window = self.windows.entry(address).or_insert(new);
        if now.duration_since(window.began) >= WINDOW {
            window.began = now;
            window.count = 0;
        }
        window.count += 1;
        Ok(window.count <= PER_WINDOW)
    }

    fn record(&mut self, digest: &str, said: Result<(), Refused>, now: Instant) {
        if self.reviewed.len() >= MAX_REVIEWED {
            let oldest = self.reviewed.iter().min_by_key(|(_, (at, _))| *at);
            if let Some(oldest) = oldest.map(|(digest, _)| digest.clone()) {
                self.reviewed.remove(&oldest);
            }
        }
        self.reviewed.insert(digest.to_owned(), (now, said));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reviewed_token_is_not_asked_about_again_and_one_address_asks_few_times() {
        let mut asked = ReviewHistory::default();
        let now = Instant::now();
        let pod = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(asked.may_ask("bad", pod, now), Ok(true));
        assert_eq!(asked.may_ask("root", pod, now), Ok(true));
        asked.record("bad", Err(Refused), now);
        asked.record("root", Ok(()), now);
        let soon = now + REVIEWED_FOR / 2;
        assert_eq!(asked.may_ask("bad", pod, soon), Err(Refused));
        assert_eq!(asked.may_ask("root", pod, soon), Ok(false));
        let later = now + REVIEWED_FOR;
        let mut may_ask = |address: [u8; 4], after: Duration| {
            let count = (0..50).filter(|number| {
                let token = format!("{address:?} {after:?} {number}");
                asked.may_ask(&token, address.into(), later + after) == Ok(true)
            });
            count.count()
        };
        assert_eq!(may_ask([10, 0, 0, 1], Duration::ZERO), 5);
        assert_eq!(may_ask([10, 0, 0, 2], Duration::ZERO), 5, "another pod");
        assert_eq!(may_ask([10, 0, 0, 1], WINDOW), 5);
        assert_eq!(asked.may_ask("bad", [10, 0, 0, 3].into(), later), Ok(true));
        for number in 0..2 * MAX_REVIEWED {
            asked.record(&number.to_string(), Err(Refused), later);
        }
        assert!(asked.reviewed.len() <= MAX_REVIEWED);
    }
}
