//! How many requests may be under way: of one identity, and of all that are not the node together.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::upstream::Credential;
use crate::upstream::pool::RequestKind;

/// Short requests of the node: kubelet has some ten.
const NODE_SHORT: u32 = 200;
/// Watches, upgrades and logs that are followed. Kubelet has a watch for each secret and config map
/// of its pods.
const NODE_LONG: u32 = 1000;
/// Requests of any other identity. A controller with many kinds has some fifty watches, and an
/// identity may have several pods on a node.
pub(crate) const OTHERS_SHORT: u32 = 100;
pub(crate) const OTHERS_LONG: u32 = 300;
/// Requests of all other identities together. Each request under way may have its window in memory,
/// if its client does not read.
pub(crate) const ALL_OTHERS_SHORT: u32 = 120;
pub(crate) const ALL_OTHERS_LONG: u32 = 400;
/// Requests that each identity may have, however many the others have.
const ALWAYS: u32 = 10;

type Key = (String, RequestKind);

/// The requests under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    by_identity: BTreeMap<Key, u32>,
    all_others_short: u32,
    all_others_long: u32,
}

/// A request under way; it ends with this.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    limits: Limits,
    credential: Credential,
    key: Key,
}

impl Limits {
    /// `None`: this identity has enough, or all together have and it has its share.
    pub(crate) fn admit(
        &self,
        credential: Credential,
        identity: &str,
        kind: RequestKind,
    ) -> Option<RequestPermit> {
        let key = (identity.to_owned(), kind);
        let mut counts = self.0.lock();
        let own = counts.by_identity.get(&key).copied().unwrap_or_default();
        let limit = match (credential, kind) {
            (Credential::Node, RequestKind::Short) => NODE_SHORT,
            (Credential::Node, RequestKind::Long) => NODE_LONG,
            (Credential::Bearer, RequestKind::Short) => OTHERS_SHORT,
            (Credential::Bearer, RequestKind::Long) => OTHERS_LONG,
        };
        if own >= limit {
            return None;
        }
        if credential == Credential::Bearer {
            let all_limit = match kind {
                RequestKind::Short => ALL_OTHERS_SHORT,
                RequestKind::Long => ALL_OTHERS_LONG,
            };
            let all = counts.all_others(kind);
            if *all >= all_limit && own >= ALWAYS {
                return None;
            }
            *all += 1;
        }
        counts.by_identity.insert(key.clone(), own + 1);
        Some(RequestPermit {
            limits: self.clone(),
            credential,
            key,
        })
    }

    /// Identity, short and long requests under way.
    pub(crate) fn counts(&self) -> BTreeMap<String, [u32; 2]> {
        let mut all = BTreeMap::<String, [u32; 2]>::new();
        let counts = self.0.lock();
        for ((identity, kind), count) in &counts.by_identity {
            let [short, long] = all.entry(identity.clone()).or_default();
            match kind {
                RequestKind::Short => *short = *count,
                RequestKind::Long => *long = *count,
            }
        }
        all
    }
}

impl Counts {
    fn all_others(&mut self, kind: RequestKind) -> &mut u32 {
        match kind {
            RequestKind::Short => &mut self.all_others_short,
            RequestKind::Long => &mut self.all_others_long,
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.0.lock();
        if self.credential == Credential::Bearer {
            *counts.all_others(self.key.1) -= 1;
        }
        if let Some(count) = counts.by_identity.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.by_identity.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Credential::{Bearer, Node};
    use RequestKind::{Long, Short};

    /// As much as is admitted.
    fn take_all(limits: &Limits, credential: Credential, identity: &str) -> Vec<RequestPermit> {
        let mut taken = Vec::new();
        while let Some(permit) = limits.admit(credential, identity, Long) {
            taken.push(permit);
        }
        taken
    }

    #[test]
    fn one_identity_does_not_use_up_the_limit_of_another() {
        let limits = Limits::default();
        let greedy = take_all(&limits, Node, "node");
        assert!(limits.admit(Node, "node", Long).is_none());
        assert!(limits.admit(Node, "node", Short).is_some());
        assert!(limits.admit(Bearer, "sa:a/b", Long).is_some());
        drop(greedy);
        assert!(limits.admit(Node, "node", Long).is_some());
        assert!(limits.counts().is_empty(), "nothing stays");
    }

    #[test]
    fn many_greedy_identities_leave_each_other_and_the_node_a_share() {
        let limits = Limits::default();
        let mut greedy = Vec::new();
        for number in 0..20 {
            greedy.extend(take_all(&limits, Bearer, &format!("sa:greedy/{number}")));
        }
        let last = take_all(&limits, Bearer, "sa:shop/cart");
        assert_eq!(last.len(), usize::try_from(ALWAYS).unwrap());
        assert!(limits.admit(Node, "node", Long).is_some());
        drop((greedy, last));
        assert!(limits.counts().is_empty(), "nothing stays");
        assert!(take_all(&limits, Bearer, "sa:shop/cart").len() > 20);
    }
}
