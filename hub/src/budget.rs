//! The bytes that answers under way hold: what is queued for clients that do not read, and what is
//! copied for the memory. Each identity has a budget, and all together have one. When it is
//! exceeded, an answer ends: the largest one of the identity that has most, but not the oldest, so that
//! something is always answered whole.
//!
//! The node has none: a client with its certificate is root on this host.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::upstream::Credential;

/// Bytes of one identity. kube-proxy in a cluster of 10,000 services copies two lists of some 4
/// MiB.
const MAX_OF_IDENTITY: usize = 8 << 20;
/// Bytes of all identities together, and with the oldest answer of each, which ends last.
const MAX_OF_ALL: usize = 10 << 20;
pub(crate) const MAX_WITH_OLDEST: usize = 12 << 20;

tokio::task_local! {
    /// Ends the stream of HTTP/2, or the connection of HTTP/1.1, that is served.
    static END: CancellationToken;
}

/// Serves a stream whose answers end by this token.
pub(crate) async fn with_end<F: Future>(end: CancellationToken, stream: F) -> F::Output {
    END.scope(end, stream).await
}

/// The bytes by identity. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    next: u64,
    bytes: usize,
    by_identity: BTreeMap<String, Account>,
}

#[derive(Debug, Default)]
struct Account {
    bytes: usize,
    /// The oldest first.
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    bytes: usize,
    end: CancellationToken,
}

/// What a part of an answer holds. Dropping it gives the bytes back.
#[derive(Debug)]
pub(crate) struct Charge {
    /// `None`: it is not counted.
    counted: Option<Counted>,
    bytes: usize,
}

#[derive(Debug)]
struct Counted {
    budget: Budget,
    identity: String,
    number: u64,
    end: CancellationToken,
}

impl Budget {
    /// For a part of the answer that is served now. Beyond the budget the answer ends.
    pub(crate) fn charge(&self, credential: Credential, identity: &str) -> Charge {
        let end = END.try_with(Clone::clone).unwrap_or_default();
        self.charge_until(end, credential, identity)
    }

    /// For the copy of an answer. Beyond the budget the copy ends, and its client has the answer.
    pub(crate) fn charge_copy(&self, credential: Credential, identity: &str) -> Charge {
        self.charge_until(CancellationToken::new(), credential, identity)
    }

    fn charge_until(
        &self,
        end: CancellationToken,
        credential: Credential,
        identity: &str,
    ) -> Charge {
        let counted = match credential {
            Credential::Node => None,
            Credential::Bearer => {
                let mut book = self.0.lock();
                book.next += 1;
                Some(Counted {
                    budget: self.clone(),
                    identity: identity.to_owned(),
                    number: book.next,
                    end,
                })
            }
        };
        Charge { counted, bytes: 0 }
    }

    /// All that is held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Charge {
    /// Sets how many bytes it holds now. Beyond the budget an answer is ended, perhaps this one.
    pub(crate) fn set(&mut self, bytes: usize) {
        let Some(counted) = &self.counted else {
            return;
        };
        if bytes == self.bytes {
            return;
        }
        let mut book = counted.budget.0.lock();
        book.replace(counted, bytes);
        if bytes > self.bytes {
            book.enforce_limits(&counted.identity);
        }
        self.bytes = bytes;
    }

    /// Adds bytes that it holds until it is dropped.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.set(self.bytes + bytes);
    }

    /// Whether the answer has been ended.
    pub(crate) fn has_ended(&self) -> bool {
        let counted = self.counted.as_ref();
        counted.is_some_and(|counted| counted.end.is_cancelled())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Book {
    fn replace(&mut self, counted: &Counted, bytes: usize) {
        self.remove(&counted.identity, counted.number);
        // An answer that was ended is dropped in a moment.
        if bytes == 0 || counted.end.is_cancelled() {
            return;
        }
        self.bytes += bytes;
        let account = self.by_identity.entry(counted.identity.clone());
        let account = account.or_default();
        account.bytes += bytes;
        let entry = Entry {
            bytes,
            end: counted.end.clone(),
        };
        account.entries.insert(counted.number, entry);
    }

    fn remove(&mut self, identity: &str, number: u64) {
        let Some(account) = self.by_identity.get_mut(identity) else {
            return;
        };
        let Some(entry) = account.entries.remove(&number) else {
            return;
        };
        account.bytes -= entry.bytes;
        self.bytes -= entry.bytes;
        if account.entries.is_empty() {
            self.by_identity.remove(identity);
        }
    }

    /// Ends answers until this identity and all together are within their budgets. The oldest one
    /// of an identity ends only if all hold too much by such.
    fn enforce_limits(&mut self, identity: &str) {
        while self.bytes_of(identity) > MAX_OF_IDENTITY && self.end_one_of(identity, 1) {}
        while self.bytes > MAX_OF_ALL
            && let Some(identity) = self.largest(2)
        {
            self.end_one_of(&identity, 1);
        }
        while self.bytes > MAX_WITH_OLDEST
            && let Some(identity) = self.largest(1)
        {
            self.end_one_of(&identity, 0);
        }
    }

    /// The identity with most bytes, of those that have so many answers or more.
    fn largest(&self, answers: usize) -> Option<String> {
        let mut largest: Option<(&String, usize)> = None;
        for (identity, account) in &self.by_identity {
            let is_larger = largest.is_none_or(|(_, bytes)| account.bytes > bytes);
            if account.entries.len() >= answers && is_larger {
                largest = Some((identity, account.bytes));
            }
        }
        largest.map(|(identity, _)| identity.clone())
    }

    fn bytes_of(&self, identity: &str) -> usize {
        match self.by_identity.get(identity) {
            Some(account) => account.bytes,
            None => 0,
        }
    }

    /// Ends the largest answer, but not so many of the oldest. `false`: there is no other.
    fn end_one_of(&mut self, identity: &str, oldest: usize) -> bool {
        let Some(account) = self.by_identity.get(identity) else {
            return false;
        };
        let others = account.entries.iter().skip(oldest);
        let Some((number, entry)) = others.max_by_key(|(_, entry)| entry.bytes) else {
            return false;
        };
        let number = *number;
        entry.end.cancel();
        self.remove(identity, number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(budget: &Budget, identity: &str, bytes: usize) -> Charge {
        let mut charge = budget.charge(Credential::Bearer, identity);
        charge.set(bytes);
        charge
    }

    #[test]
    fn the_largest_answer_of_who_has_too_much_ends_but_not_the_oldest() {
        let budget = Budget::default();
        let other = charge(&budget, "sa:shop/cart", MAX_OF_ALL - MAX_OF_IDENTITY);
        let oldest = charge(&budget, "sa:greedy/pod", MAX_OF_IDENTITY / 2);
        let small = charge(&budget, "sa:greedy/pod", MAX_OF_IDENTITY / 8);
        let large = charge(&budget, "sa:greedy/pod", MAX_OF_IDENTITY / 2);
        assert!(large.has_ended());
        for charge in [&other, &oldest, &small] {
            assert!(!charge.has_ended());
        }
        drop((other, oldest, small, large));
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn an_answer_alone_may_be_larger_than_the_budget_and_the_node_has_none() {
        let budget = Budget::default();
        assert!(!charge(&budget, "sa:shop/cart", MAX_OF_IDENTITY + 1).has_ended());
        let mut node = budget.charge(Credential::Node, "node");
        node.set(100 * MAX_OF_ALL);
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn a_copy_that_is_too_large_ends_and_not_the_answer() {
        let budget = Budget::default();
        let end = CancellationToken::new();
        let answer = END.sync_scope(end.clone(), || charge(&budget, "sa:shop/cart", 1));
        let mut copy = END.sync_scope(end.clone(), || {
            budget.charge_copy(Credential::Bearer, "sa:shop/cart")
        });
        copy.set(2 * MAX_WITH_OLDEST);
        assert!(copy.has_ended());
        assert!(!answer.has_ended() && !end.is_cancelled());
    }

    #[test]
    fn many_identities_have_no_more_than_one_budget_together_besides_their_oldest_answers() {
        const SOME: usize = (MAX_WITH_OLDEST >> 20) - 1;
        let budget = Budget::default();
        let mut oldest = Vec::new();
        let mut others = Vec::new();
        for number in 0..SOME {
            oldest.push(charge(&budget, &format!("sa:a/{number}"), 1 << 20));
        }
        for number in 0..100 {
            others.push(charge(&budget, &format!("sa:a/{}", number % SOME), 1 << 20));
        }
        assert!(!oldest.iter().any(Charge::has_ended));
        assert!(others.iter().all(Charge::has_ended));
        for number in SOME..2 * SOME {
            oldest.push(charge(&budget, &format!("sa:a/{number}"), 1 << 20));
        }
        assert!(oldest.iter().any(Charge::has_ended));
        assert!(budget.bytes() <= MAX_WITH_OLDEST);
    }
}
