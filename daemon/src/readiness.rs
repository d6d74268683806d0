//! Readiness by parts: `/readyz` succeeds once every gate is open, and until then names the closed
//! gates.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// The gates of a process. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    parts: Arc<watch::Sender<Parts>>,
}

#[derive(Debug, Default)]
struct Parts {
    missing: BTreeMap<&'static str, String>,
    remarks: BTreeMap<&'static str, String>,
}

impl Readiness {
    /// Adds a closed gate. `name` is its name in `/readyz`.
    #[must_use = "the part is missing until its gate is opened"]
    pub fn gate(&self, name: &'static str) -> Gate {
        let gate = Gate {
            name,
            readiness: self.clone(),
        };
        gate.close("not there yet");
        gate
    }

    /// Name and reason of each closed gate, sorted by name. If empty, the process is ready.
    #[must_use]
    pub fn missing(&self) -> Vec<(&'static str, String)> {
        self.parts
            .borrow()
            .missing
            .iter()
            .map(|(name, reason)| (*name, reason.clone()))
            .collect()
    }

    /// Remarks on open gates, by their names.
    #[must_use]
    pub fn remarks(&self) -> Vec<(&'static str, String)> {
        self.parts
            .borrow()
            .remarks
            .iter()
            .map(|(name, remark)| (*name, remark.clone()))
            .collect()
    }

    /// Waits until all gates except those in `without` are open.
    pub async fn ready_without(&self, without: &[&str]) {
        let mut parts = self.parts.subscribe();
        // The sender lives as long as `self`.
        let _open = parts
            .wait_for(|parts| parts.missing.keys().all(|name| without.contains(name)))
            .await;
    }

    fn change(&self, change: impl FnOnce(&mut Parts)) {
        self.parts.send_modify(change);
    }
}

/// A condition of readiness.
#[derive(Clone, Debug)]
pub struct Gate {
    name: &'static str,
    readiness: Readiness,
}

impl Gate {
    /// The condition holds.
    pub fn open(&self) {
        self.readiness
            .change(|parts| drop(parts.missing.remove(self.name)));
    }

    /// Whether the condition holds.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self
            .readiness
            .parts
            .borrow()
            .missing
            .contains_key(self.name)
    }

    /// The condition does not hold, for this reason.
    pub fn close(&self, reason: impl Into<String>) {
        self.readiness
            .change(|parts| drop(parts.missing.insert(self.name, reason.into())));
    }

    /// Sets the remark of `/readyz` on an open gate; `None` removes it.
    pub fn remark(&self, remark: Option<String>) {
        self.readiness.change(|parts| {
            drop(match remark {
                Some(remark) => parts.remarks.insert(self.name, remark),
                None => parts.remarks.remove(self.name),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_names_what_is_missing_until_all_gates_are_open() {
        let readiness = Readiness::default();
        let directory = readiness.gate("directory");
        let listeners = readiness.gate("listeners");
        listeners.open();
        assert!(listeners.is_open() && !directory.is_open());
        directory.close("nodes.toml: line 3: no such key");
        assert_eq!(
            readiness.missing(),
            [("directory", "nodes.toml: line 3: no such key".to_owned())]
        );
        directory.open();
        assert_eq!(readiness.missing(), []);
    }

    #[test]
    fn a_remark_does_not_make_anything_missing() {
        let readiness = Readiness::default();
        let hooks = readiness.gate("hooks");
        hooks.open();
        hooks.remark(Some("nftables alone".to_owned()));
        assert_eq!(readiness.missing(), []);
        assert_eq!(
            readiness.remarks(),
            [("hooks", "nftables alone".to_owned())]
        );
        hooks.remark(None);
        assert_eq!(readiness.remarks(), []);
    }
}
