//! Readiness by parts: `/readyz` is true once every gate has been opened, and until then names those that have not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a process waits for before it calls itself ready. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    missing: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    /// Adds something to wait for. `name` is what `/readyz` calls it.
    #[must_use = "the part is missing until its gate is opened"]
    pub fn gate(&self, name: &'static str) -> Gate {
        let gate = Gate { name, readiness: self.clone() };
        gate.close("not there yet");
        gate
    }

    /// What is missing: name and reason of each closed gate, in the names' order. Empty: ready.
    #[must_use]
    pub fn missing(&self) -> Vec<(&'static str, String)> {
        self.lock().iter().map(|(name, reason)| (*name, reason.clone())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thing that a process waits for.
#[derive(Clone, Debug)]
pub struct Gate {
    name: &'static str,
    readiness: Readiness,
}

impl Gate {
    /// The part is there.
    pub fn open(&self) {
        self.readiness.lock().remove(self.name);
    }

    /// Whether the part is there.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.readiness.lock().contains_key(self.name)
    }

    /// The part is not there (any more), with the reason for people.
    pub fn close(&self, reason: impl Into<String>) {
        self.readiness.lock().insert(self.name, reason.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_names_what_is_missing_until_all_gates_are_open() {
        let readiness = Readiness::default();
        let (directory, listeners) = (readiness.gate("directory"), readiness.gate("listeners"));
        listeners.open();
        assert!(listeners.is_open() && !directory.is_open());
        directory.close("nodes.toml: line 3: no such key");
        assert_eq!(readiness.missing(), [("directory", "nodes.toml: line 3: no such key".to_owned())]);
        directory.open();
        assert_eq!(readiness.missing(), []);
    }
}
