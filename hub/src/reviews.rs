//! How often the API server is asked whose a token is: as the node, whose requests kubelet needs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// At once. Each is a short request of the node's.
const AT_ONCE: usize = 16;
/// For how long a token that the API server refused is not reviewed again.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Refused tokens and addresses that are remembered; then the oldest goes.
const MAX_REFUSED: usize = 4096;
const MAX_ADDRESSES: usize = 1024;
/// Reviews for one address: a pod has one or two tokens. Tokens of programs of the host have one
/// address together.
const PER_WINDOW: u32 = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// The questions that were asked.
#[derive(Debug)]
pub(crate) struct Reviews {
    at_once: Semaphore,
    history: Mutex<ReviewHistory>,
}

#[derive(Debug, Default)]
struct ReviewHistory {
    /// Since when a token is refused, by the digest of the token.
    refused: BTreeMap<String, Instant>,
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
    ) -> Option<SemaphorePermit<'_>> {
        if !self.history.lock().may_ask(digest, address, Instant::now()) {
            return None;
        }
        // The semaphore is never closed.
        self.at_once.acquire().await.ok()
    }

    /// The API server does not accept this token.
    pub(super) fn record_refusal(&self, digest: &str) {
        self.history.lock().record_refusal(digest, Instant::now());
    }
}

impl ReviewHistory {
    fn may_ask(&mut self, digest: &str, address: IpAddr, now: Instant) -> bool {
        match self.refused.get(digest) {
            Some(since) if now.duration_since(*since) < REFUSED_FOR => return false,
            Some(_) => drop(self.refused.remove(digest)),
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
        window.count <= PER_WINDOW
    }

    fn record_refusal(&mut self, digest: &str, now: Instant) {
        if self.refused.len() >= MAX_REFUSED {
            let oldest = self.refused.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(digest, _)| digest.clone()) {
                self.refused.remove(&oldest);
            }
        }
        self.refused.insert(digest.to_owned(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_token_is_not_asked_about_again_and_one_address_asks_few_times() {
        let mut asked = ReviewHistory::default();
        let now = Instant::now();
        let pod = IpAddr::from([10, 0, 0, 1]);
        assert!(asked.may_ask("bad", pod, now));
        asked.record_refusal("bad", now);
        assert!(!asked.may_ask("bad", pod, now + REFUSED_FOR / 2));
        let later = now + REFUSED_FOR;
        let mut may_ask = |address: [u8; 4], after: Duration| {
            let count = (0..50).filter(|number| {
                let token = format!("{address:?} {after:?} {number}");
                asked.may_ask(&token, address.into(), later + after)
            });
            count.count()
        };
        assert_eq!(may_ask([10, 0, 0, 1], Duration::ZERO), 5);
        assert_eq!(may_ask([10, 0, 0, 2], Duration::ZERO), 5, "another pod");
        assert_eq!(may_ask([10, 0, 0, 1], WINDOW), 5);
        assert!(asked.may_ask("bad", [10, 0, 0, 3].into(), later));
        for number in 0..2 * MAX_REFUSED {
            asked.record_refusal(&number.to_string(), later);
        }
        assert!(asked.refused.len() <= MAX_REFUSED);
    }
}
