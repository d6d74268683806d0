//! How many watches are opened again at once, so that the return of a link causes no burst.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::upstream::Credential;

/// Watches of the node, and of all others, that are opened again at the same time.
const AT_ONCE: usize = 4;

/// Who may open a watch again now.
#[derive(Debug)]
pub(crate) struct Turns {
    node: Semaphore,
    others: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            node: Semaphore::new(AT_ONCE),
            others: Semaphore::new(AT_ONCE),
        }
    }
}

impl Turns {
    /// Waits for a turn, which lasts until this is dropped.
    pub(crate) async fn wait(&self, credential: Credential) -> SemaphorePermit<'_> {
        let turns = match credential {
            Credential::Node => &self.node,
            Credential::Bearer => &self.others,
        };
        turns
            .acquire()
            .await
            .expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn few_watches_are_opened_at_once_and_those_of_pods_do_not_wait_for_the_nodes() {
        let turns = Turns::default();
        let mut taken = Vec::new();
        for credential in [Credential::Node, Credential::Bearer] {
            for _ in 0..AT_ONCE {
                taken.push(turns.wait(credential).now_or_never().unwrap());
            }
            assert!(turns.wait(credential).now_or_never().is_none());
        }
        drop(taken);
        assert!(turns.wait(Credential::Node).now_or_never().is_some());
    }
}
