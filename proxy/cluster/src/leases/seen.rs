//! The Leases of other proxies, and which are alive: those that were seen to change within their
//! duration. As client-go does it, the times that they contain are never compared with a clock.
//! Pure: the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::listed_peer::ListedPeer;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, Preconditions};
use kube::runtime::watcher::Event;

use super::OwnLease;
use super::record::{BadLease, PREFIX, Renewal, name, read};
use super::watch_clock::WatchClock;

/// The most proxies that are used. More would need another way to share tunnels.
pub const MAX_LISTED: usize = 256;
/// The most Leases that are remembered, used or not.
const MAX_KEPT: usize = 4 * MAX_LISTED;
/// A Lease that has not changed for so long belongs to a host that is gone.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What is known of the other proxies' Leases.
#[derive(Debug, Default)]
pub(super) struct SeenLeases {
    own: Option<OwnName>,
    clock: WatchClock,
    /// Keyed by the Leases' names.
    leases: BTreeMap<String, SeenLease>,
    /// While a list is under way: the names in it so far.
    listing: Option<BTreeSet<String>>,
}

#[derive(Debug)]
struct OwnName {
    name: String,
    instance: Instance,
}

#[derive(Debug)]
struct SeenLease {
    renewal: Renewal,
    /// When it changed last, by the clock of the watch.
    changed: Duration,
    peer: Result<(ListedPeer, Duration), BadLease>,
    version: Preconditions,
}

/// The proxies whose Leases are alive.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) peers: BTreeSet<ListedPeer>,
    /// The number of proxies beyond [`MAX_LISTED`].
    pub(super) left_out: usize,
}

impl SeenLeases {
    pub(super) fn new(own: Option<&OwnLease>) -> Self {
        let own = own.map(|own| OwnName {
            name: name(&own.address),
            instance: own.instance.clone(),
        });
        Self {
            own,
            ..Self::default()
        }
    }

    /// Applies an event of the watch. Returns the name of a Lease that describes no proxy, once, and
    /// the reason.
    pub(super) fn apply(
        &mut self,
        event: Event<Lease>,
        now: Instant,
    ) -> Option<(String, BadLease)> {
        if !matches!(event, Event::Init) {
            self.clock.tick(now);
        }
        match event {
            Event::Init => {
                self.listing = Some(BTreeSet::new());
                None
            }
            Event::InitApply(lease) => {
                let name = lease.metadata.name.clone().unwrap_or_default();
                let news = self.put(lease);
                if let Some(listing) = &mut self.listing
                    && self.leases.contains_key(&name)
                {
                    listing.insert(name);
                }
                news
            }
            Event::InitDone => {
                if let Some(listing) = self.listing.take() {
                    self.leases.retain(|name, _| listing.contains(name));
                }
                None
            }
            Event::Apply(lease) => self.put(lease),
            Event::Delete(lease) => {
                self.leases
                    .remove(lease.metadata.name.as_deref().unwrap_or_default());
                None
            }
        }
    }

    /// Notes that the watch is broken. All that is known stays.
    pub(super) fn lost(&mut self) {
        self.clock.stop();
    }

    /// The proxies whose Leases are alive; `None` while a list is under way.
    pub(super) fn listed(&self) -> Option<Listed> {
        if self.listing.is_some() {
            return None;
        }
        let mut listed = Listed::default();
        for lease in self.leases.values() {
            let Some((peer, _)) = self.alive(lease) else {
                continue;
            };
            if listed.peers.len() < MAX_LISTED {
                listed.peers.insert(peer.clone());
            } else {
                listed.left_out += 1;
            }
        }
        Some(listed)
    }

    /// A Lease to delete, with the version to which that applies. It is returned again only after
    /// as long a time.
    pub(super) fn abandoned(&mut self) -> Option<(String, Preconditions)> {
        let now = self.clock.time();
        for (name, lease) in &mut self.leases {
            if name.starts_with(PREFIX) && now.saturating_sub(lease.changed) >= ABANDONED_AFTER {
                lease.changed = now;
                return Some((name.clone(), lease.version.clone()));
            }
        }
        None
    }

    fn alive<'a>(&self, lease: &'a SeenLease) -> Option<&'a (ListedPeer, Duration)> {
        let since = self.clock.time().saturating_sub(lease.changed);
        let Ok((peer, lasts)) = &lease.peer else {
            return None;
        };
        let is_own = matches!(&self.own, Some(own) if own.instance == peer.instance);
        if since >= *lasts || is_own {
            return None;
        }
        lease.peer.as_ref().ok()
    }

    fn put(&mut self, lease: Lease) -> Option<(String, BadLease)> {
        let renewal = Renewal::from(&lease);
        let peer = read(&lease);
        let ObjectMeta {
            name,
            uid,
            resource_version,
            ..
        } = lease.metadata;
        let name = name.unwrap_or_default();
        if matches!(&self.own, Some(own) if own.name == name) {
            return None;
        }
        let before = self.leases.get(&name);
        if before.is_none() && self.leases.len() >= MAX_KEPT {
            return None;
        }
        let bad = peer.as_ref().err().copied();
        let is_news = bad != before.and_then(|before| before.peer.as_ref().err().copied());
        let changed = match before {
            Some(before) if before.renewal == renewal => before.changed,
            Some(_) | None => self.clock.time(),
        };
        let version = Preconditions {
            uid,
            resource_version,
        };
        let seen = SeenLease {
            renewal,
            changed,
            peer,
            version,
        };
        self.leases.insert(name.clone(), seen);
        match bad {
            Some(bad) if is_news => Some((name, bad)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
