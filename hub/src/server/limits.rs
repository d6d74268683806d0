//! How many requests one identity may have under way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Short requests, as the design has it: kubelet has some ten.
const SHORT: u32 = 200;
/// Watches, upgrades and logs that are followed. Kubelet has a watch for each secret and config map
/// of its pods.
const LONG: u32 = 1000;

/// Whether a request ends by itself soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Duration {
    Short,
    Long,
}

type Key = (String, Duration);

/// The requests under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits(Arc<Mutex<BTreeMap<Key, u32>>>);

/// A request under way; it ends with this.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    limits: Limits,
    key: Key,
}

impl Limits {
    /// `None`: this identity has enough.
    pub(crate) fn admit(&self, identity: &str, duration: Duration) -> Option<RequestPermit> {
        let key = (identity.to_owned(), duration);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key.clone()).or_default();
        let limit = match duration {
            Duration::Short => SHORT,
            Duration::Long => LONG,
        };
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(RequestPermit {
            limits: self.clone(),
            key,
        })
    }

    /// Identity, short and long requests under way.
    pub(crate) fn counts(&self) -> BTreeMap<String, [u32; 2]> {
        let mut all = BTreeMap::<String, [u32; 2]>::new();
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((identity, duration), count) in &*counts {
            let [short, long] = all.entry(identity.clone()).or_default();
            match duration {
                Duration::Short => *short = *count,
                Duration::Long => *long = *count,
            }
        }
        all
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_does_not_use_up_the_limit_of_another() {
        let limits = Limits::default();
        let greedy: Vec<_> = (0..SHORT)
            .map(|_| limits.admit("node", Duration::Short).unwrap())
            .collect();
        assert!(limits.admit("node", Duration::Short).is_none());
        assert!(limits.admit("node", Duration::Long).is_some());
        assert!(limits.admit("sa:a/b", Duration::Short).is_some());
        drop(greedy);
        assert!(limits.admit("node", Duration::Short).is_some());
        assert!(limits.counts().is_empty(), "nothing stays");
    }
}
