//! Copies of answers that are still arriving. A copy belongs to the request whose answer it
//! copies: dropped with it, it leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::objects::name_of;
use super::{Bounds, Clock, HeldObject, Identity, ObjectName, Scope};
use crate::packed::Sample;
use crate::wire::{Object, TypeMeta};

/// For how long a list waits for its next page. API servers keep a `continue` token 5 to 10 min.
const NEXT_PAGE_WITHIN: Duration = Duration::from_secs(600);
/// Lists that may wait for their next page at the same time, and what those of others than the node
/// may take. The oldest of the reader that has most is dropped first, and the node's last.
const UNFINISHED_LISTS: usize = 32;
pub(crate) const MAX_UNFINISHED_OF_OTHERS: usize = 2 << 20;
/// What a list takes besides its objects; rounded up.
const UNFINISHED_OVERHEAD: usize = 4 << 10;

/// A list that is arriving, page by page.
#[derive(Clone, Debug)]
pub(crate) struct ListCopy {
    pub(super) scope: Scope,
    pub(super) members: BTreeMap<ObjectName, HeldObject>,
    /// Objects that are too large to be remembered.
    pub(super) lacking: BTreeSet<ObjectName>,
    /// The version of the first page; later pages have the same, or the list is not one state.
    pub(super) resource_version: Option<u64>,
    /// Why it can no longer become whole.
    pub(super) spoiled: bool,
    bounds: Bounds,
    sample: Sample,
    bytes: usize,
}

impl ListCopy {
    pub(super) fn new(scope: Scope, bounds: Bounds, sample: Sample) -> Self {
        Self {
            scope,
            members: BTreeMap::new(),
            lacking: BTreeSet::new(),
            resource_version: None,
            spoiled: false,
            bounds,
            sample,
            bytes: 0,
        }
    }

    /// Adds one item. Beyond the bounds the copy is spoiled: it then takes nothing more, and fills
    /// nothing. So it is by an object without a version, as of metrics: of two of these it
    /// would not be known which is the later one.
    pub(crate) fn add(&mut self, object: Object) {
        if self.spoiled {
            return;
        }
        if object.metadata.resource_version == 0 {
            self.spoil();
            return;
        }
        let name = name_of(&object.metadata);
        if object.bytes.len() > self.bounds.object {
            self.remove(&name);
            self.lacking.insert(name);
            return;
        }
        let object = HeldObject::new(object, &self.sample);
        self.bytes += object.size();
        if self.bytes > self.bounds.total {
            self.spoil();
            return;
        }
        self.lacking.remove(&name);
        self.members.insert(name, object);
    }

    pub(super) fn remove(&mut self, name: &ObjectName) {
        if let Some(object) = self.members.remove(name) {
            self.bytes -= object.size();
        }
        self.lacking.remove(name);
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Something of the answer was lost or was not understood: this copy fills nothing.
    pub(crate) fn spoil(&mut self) {
        self.spoiled = true;
        self.bytes = 0;
        self.members.clear();
        self.lacking.clear();
    }
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchStart {
    /// `resourceVersion=` of the request, not 0.
    At(u64),
    /// `sendInitialEvents=true`: all that exists comes first, up to a bookmark.
    Streaming,
    /// No resource version, or 0: what exists comes first, and nothing marks where that ends.
    /// Its events count from the first bookmark on.
    Anywhere,
}

/// A watch that is arriving.
#[derive(Debug)]
pub(crate) struct WatchCopy {
    pub(super) scope: Scope,
    /// The epoch of the set when the watch began.
    pub(super) epoch: u64,
    pub(super) position: WatchPosition,
}

impl WatchCopy {
    /// Memory that it takes: of what exists, until all of it has come.
    pub(crate) fn bytes(&self) -> usize {
        match &self.position {
            WatchPosition::Initial { shadow, .. } => shadow.bytes,
            WatchPosition::At(_) | WatchPosition::Unknown => 0,
        }
    }
}

/// How far a watch has come.
#[derive(Debug)]
pub(super) enum WatchPosition {
    /// All that happened up to this resource version.
    At(u64),
    /// A part of what exists; the rest follows.
    Initial {
        shadow: Box<ListCopy>,
        item_type: Option<TypeMeta>,
    },
    /// It is not known.
    Unknown,
}

/// Lists whose next page was not asked for yet, by the `continue` token that asks for it.
#[derive(Debug, Default)]
pub(super) struct UnfinishedLists {
    by_token: BTreeMap<(Scope, String), Unfinished>,
}

#[derive(Debug)]
struct Unfinished {
    copy: ListCopy,
    /// Who has the pages so far, and has not asked for the next one.
    readers: BTreeSet<Identity>,
    since: Duration,
}

impl Unfinished {
    fn bytes(&self) -> usize {
        self.copy.bytes + UNFINISHED_OVERHEAD
    }

    /// To whose limit it counts: the node's, if it is one of the readers.
    fn owner(&self) -> &Identity {
        self.readers.first().unwrap_or(&Identity::Node)
    }
}

impl UnfinishedLists {
    /// Keeps a copy until its next page is asked for.
    pub(super) fn put_aside(
        &mut self,
        copy: ListCopy,
        token: String,
        reader: &Identity,
        now: Clock,
    ) {
        self.drop_expired(now);
        // Two clients with the same token have the same pages so far: one copy is enough.
        let key = (copy.scope.clone(), token);
        let mut readers = BTreeSet::from([reader.clone()]);
        if let Some(mut same) = self.by_token.remove(&key) {
            readers.append(&mut same.readers);
        }
        let unfinished = Unfinished {
            copy,
            readers,
            since: now.uptime,
        };
        self.by_token.insert(key, unfinished);
        if self.by_token.len() > UNFINISHED_LISTS {
            self.drop_oldest();
        }
    }

    /// Takes the copy that waits for this token of this reader. That of another reader stays: it
    /// may not have asked yet.
    pub(super) fn resume(
        &mut self,
        scope: &Scope,
        token: &str,
        reader: &Identity,
        now: Clock,
    ) -> Option<ListCopy> {
        self.drop_expired(now);
        let key = (scope.clone(), token.to_owned());
        let unfinished = self.by_token.get_mut(&key)?;
        if !unfinished.readers.remove(reader) {
            return None;
        }
        if unfinished.readers.is_empty() {
            return self.by_token.remove(&key).map(|it| it.copy);
        }
        Some(unfinished.copy.clone())
    }

    fn drop_expired(&mut self, now: Clock) {
        self.by_token
            .retain(|_, it| now.uptime.saturating_sub(it.since) < NEXT_PAGE_WITHIN);
    }

    /// Drops lists until the others take no more than this, all together.
    pub(super) fn enforce_limits(&mut self, bytes: usize) {
        loop {
            let mut all = 0;
            let mut others = 0;
            for list in self.by_token.values() {
                all += list.bytes();
                if *list.owner() != Identity::Node {
                    others += list.bytes();
                }
            }
            if all <= bytes && others <= MAX_UNFINISHED_OF_OTHERS {
                return;
            }
            self.drop_oldest();
        }
    }

    /// Drops the oldest list of the reader that has most.
    fn drop_oldest(&mut self) {
        let mut by_reader = BTreeMap::<&Identity, usize>::new();
        for list in self.by_token.values() {
            *by_reader.entry(list.owner()).or_default() += list.bytes();
        }
        let greediest = (by_reader.into_iter())
            .max_by_key(|(reader, bytes)| (**reader != Identity::Node, *bytes));
        let Some((reader, _)) = greediest else {
            return;
        };
        let mut oldest: Option<(&(Scope, String), Duration)> = None;
        for (key, list) in &self.by_token {
            let is_older = oldest.is_none_or(|(_, since)| list.since < since);
            if *list.owner() == *reader && is_older {
                oldest = Some((key, list.since));
            }
        }
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.by_token.remove(&key);
        }
    }
}
