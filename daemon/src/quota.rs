//! Limits what each client may hold at once, so that no single client excludes the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// Permits per client, or per key `K`. Clones share it.
#[derive(Debug)]
pub struct Quota<K>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    each: usize,
    all: usize,
    in_use: Mutex<InUse<K>>,
}

#[derive(Debug)]
struct InUse<K> {
    by_key: HashMap<K, usize>,
    all: usize,
}

/// One permit. Dropping it releases it.
#[derive(Debug)]
pub struct Permit<K: Eq + Hash>(Quota<K>, K);

impl<K> Clone for Quota<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Clone + Eq + Hash> Quota<K> {
    /// `each` permits at once for one key, `all` for all keys together.
    #[must_use]
    pub fn new(each: usize, all: usize) -> Self {
        let in_use = Mutex::new(InUse {
            by_key: HashMap::new(),
            all: 0,
        });
        Self(Arc::new(Shared { each, all, in_use }))
    }

    /// Acquires a permit for `key`; `None` if the key's limit or the total limit is reached.
    #[must_use]
    pub fn acquire(&self, key: K) -> Option<Permit<K>> {
        let mut in_use = self.in_use();
        let of_key = in_use.by_key.get(&key).copied().unwrap_or_default();
        if of_key >= self.0.each || in_use.all >= self.0.all {
            return None;
        }
        in_use.by_key.insert(key.clone(), of_key + 1);
        in_use.all += 1;
        drop(in_use);
        Some(Permit(self.clone(), key))
    }

    /// Whether all permits were released, and nothing is stored for them any more.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.in_use().by_key.is_empty()
    }
}

impl<K> Quota<K> {
    fn in_use(&self) -> MutexGuard<'_, InUse<K>> {
        self.0.in_use.lock()
    }
}

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        let mut in_use = self.0.in_use();
        in_use.all -= 1;
        if let Some(of_key) = in_use.by_key.get_mut(&self.1) {
            *of_key -= 1;
            if *of_key == 0 {
                in_use.by_key.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_has_its_share_and_all_together_have_a_limit() {
        let quota = Quota::new(32, 256);
        let take =
            |client: u8| -> Vec<_> { (0..256).map_while(|_| quota.acquire(client)).collect() };
        let greedy = take(1);
        assert_eq!(greedy.len(), 32);
        let others: Vec<_> = (2..=100).map(take).collect();
        assert_eq!(others.iter().map(Vec::len).sum::<usize>(), 256 - 32);
        drop(greedy);
        assert!(quota.acquire(200).is_some());
        drop(others);
        assert!(quota.is_unused());
    }
}
