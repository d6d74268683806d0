//! The set machine against a model of an API server, in random order: what is served is always
//! some past whole state, and never goes back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fixtures::*;
use super::overlay::Overlaid;
use super::*;
use crate::store::{Rows, Table};
use crate::wire::{Event, EventKind, Object};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A pod of the model: its last write, and whether the label selector selects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pod {
    resource_version: u64,
    labelled: bool,
}

type State = BTreeMap<&'static str, Pod>;

/// An API server that keeps its whole history: the state at each resource version.
#[derive(Debug)]
struct ApiServer {
    states: Vec<State>,
}

/// The digest of an answer with these objects.
fn digest(objects: &[Object]) -> Digest {
    let mut digester = Digester::new();
    for object in objects {
        digester.write(&object.bytes);
    }
    digester.digest()
}

impl ApiServer {
    fn now(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    fn had(&self, name: &str, resource_version: u64) -> bool {
        let is_it = |pod: &Pod| pod.resource_version == resource_version;
        self.states
            .iter()
            .any(|state| state.get(name).is_some_and(is_it))
    }

    fn write(&mut self, name: &'static str, labelled: bool) {
        let resource_version = self.now() + 1;
        let mut state = self.states[self.states.len() - 1].clone();
        state.insert(
            name,
            Pod {
                resource_version,
                labelled,
            },
        );
        self.states.push(state);
    }

    fn delete(&mut self, name: &str) {
        let mut state = self.states[self.states.len() - 1].clone();
        if state.remove(name).is_some() {
            self.states.push(state);
        }
    }

    fn selected(&self, scope: &Scope, resource_version: u64) -> Vec<Object> {
        let state = &self.states[usize::try_from(resource_version).unwrap()];
        let selected = state
            .iter()
            .filter(|(name, pod)| selects(scope, name, **pod));
        selected
            .map(|(name, it)| pod(name, it.resource_version))
            .collect()
    }

    /// The event that leads to a resource version, as a watch of the scope sees it.
    fn event(&self, scope: &Scope, resource_version: u64) -> Option<Event> {
        let before = self.selected(scope, resource_version - 1);
        let after = self.selected(scope, resource_version);
        let name = |it: &Object| it.metadata.name.clone();
        if let Some(changed) = after.iter().find(|it| !before.contains(it)) {
            let known = before.iter().any(|it| name(it) == name(changed));
            let kind = if known {
                EventKind::Modified
            } else {
                EventKind::Added
            };
            return Some(event(kind, changed.clone()));
        }
        let gone = before
            .iter()
            .find(|it| after.iter().all(|other| name(other) != name(it)))?;
        Some(event(
            EventKind::Deleted,
            pod(&name(gone), resource_version),
        ))
    }
}

fn selects(scope: &Scope, name: &str, pod: Pod) -> bool {
    scope.selection.may_contain(&super::fixtures::name(name))
        && (scope.selection.label_selector.is_empty() || pod.labelled)
}

fn scopes() -> [Scope; 4] {
    [all(), namespace("default"), labelled("app=x"), one("a")]
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        name: usize,
        labelled: bool,
    },
    Delete {
        name: usize,
    },
    /// A list by a server that lags this many versions behind; paged, and maybe abandoned.
    List {
        scope: usize,
        lag: u64,
        pages: usize,
        abandoned: bool,
    },
    Get {
        name: usize,
        lag: u64,
    },
    /// A watch from a resource version this much older than now.
    Watch {
        scope: usize,
        lag: u64,
    },
    StreamingList {
        scope: usize,
    },
    /// A watch is told the next events, and then a bookmark if all was told.
    Deliver {
        watch: usize,
        events: usize,
    },
    /// A copy lost some events; the watch goes on.
    LoseEvents {
        watch: usize,
        events: u64,
    },
    EndWatch {
        watch: usize,
    },
    /// The node writes an object, or deletes it, and the API server does not know.
    WriteLocally {
        name: usize,
        deleted: bool,
    },
    Flush,
    /// The power is cut; the disk has what was flushed.
    Crash,
    /// One row of the disk is damaged, then the power is cut.
    DamageAndCrash {
        row: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let scope = 0..scopes().len();
    let lag = 0..4_u64;
    let watch = 0..6_usize;
    prop_oneof![
        6 => (name.clone(), any::<bool>()).prop_map(|(name, labelled)| Step::Write { name, labelled }),
        3 => name.clone().prop_map(|name| Step::Delete { name }),
        4 => (scope.clone(), lag.clone(), 1..4_usize, any::<bool>()).prop_map(
            |(scope, lag, pages, abandoned)| Step::List { scope, lag, pages, abandoned }
        ),
        2 => (name.clone(), lag.clone()).prop_map(|(name, lag)| Step::Get { name, lag }),
        2 => (name, any::<bool>()).prop_map(
            |(name, deleted)| Step::WriteLocally { name, deleted }
        ),
        3 => (scope.clone(), lag).prop_map(|(scope, lag)| Step::Watch { scope, lag }),
        1 => scope.prop_map(|scope| Step::StreamingList { scope }),
        8 => (watch.clone(), 1..4_usize).prop_map(|(watch, events)| Step::Deliver { watch, events }),
        1 => (watch.clone(), 1..3_u64).prop_map(|(watch, events)| Step::LoseEvents { watch, events }),
        1 => watch.prop_map(|watch| Step::EndWatch { watch }),
        2 => Just(Step::Flush),
        1 => Just(Step::Crash),
        1 => (0..40_usize).prop_map(|row| Step::DamageAndCrash { row }),
    ]
}

/// A watch of the model: its copy, and what the API server has told it.
#[derive(Debug)]
struct Watch {
    copy: WatchCopy,
    told: u64,
}

#[derive(Debug)]
struct World {
    api: ApiServer,
    cache: Cache,
    disk: Rows,
    watches: Vec<Watch>,
    /// The largest resource version that a list of each scope was served at.
    served: BTreeMap<Scope, u64>,
    /// The newest version of each pod that a GET was served.
    found: BTreeMap<&'static str, u64>,
    /// The last local write of each pod; `None`: its deletion.
    written: BTreeMap<&'static str, Option<String>>,
    writes: usize,
    crashed: bool,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            api: ApiServer {
                states: vec![State::new(), State::new()],
            },
            cache: cache(),
            disk: Rows::default(),
            watches: Vec::new(),
            served: BTreeMap::new(),
            found: BTreeMap::new(),
            written: BTreeMap::new(),
            writes: 0,
            crashed: false,
        };
        world.allow_all();
        world
    }

    fn allow_all(&mut self) {
        for scope in scopes() {
            self.cache
                .record_verdict(&NODE, Verb::List, &scope, Verdict::Allowed, at(0));
        }
        for name in NAMES {
            self.cache
                .record_verdict(&NODE, Verb::Get, &one(name), Verdict::Allowed, at(0));
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write { name, labelled } => self.api.write(NAMES[name], labelled),
            Step::Delete { name } => self.api.delete(NAMES[name]),
            Step::List {
                scope,
                lag,
                pages,
                abandoned,
            } => {
                self.list(&scopes()[scope], lag, pages, abandoned);
            }
            Step::Get { name, lag } => self.get(NAMES[name], lag),
            Step::Watch { scope, lag } => {
                let told = self.api.now().saturating_sub(lag).max(1);
                self.watch(&scopes()[scope], WatchStart::At(told), told);
            }
            Step::StreamingList { scope } => self.stream(&scopes()[scope]),
            Step::Deliver { watch, events } => self.deliver(watch, events),
            Step::LoseEvents { watch, events } => {
                if let Some(watch) = self.watches.get_mut(watch) {
                    watch.told = (watch.told + events).min(self.api.now());
                    let told = WatchStart::At(watch.told);
                    self.cache.mark_behind(&watch.copy.scope);
                    watch.copy = self.cache.start_watch(&watch.copy.scope, told);
                }
            }
            Step::EndWatch { watch } => {
                if watch < self.watches.len() {
                    self.watches.remove(watch);
                }
            }
            Step::WriteLocally { name, deleted } => {
                self.writes += 1;
                let bytes = (!deleted).then(|| format!("write {}", self.writes));
                overlay(&mut self.cache, NAMES[name], bytes.as_deref());
                self.written.insert(NAMES[name], bytes);
            }
            Step::Flush => self.disk.apply(&self.cache.take_changes()),
            Step::Crash => self.crash(),
            Step::DamageAndCrash { row } => {
                let damaged = self.disk.clone().without(Table::Members, row);
                let damaged = damaged.without(Table::Objects, row + 1);
                self.disk = damaged;
                self.crash();
            }
        }
    }

    fn list(&mut self, scope: &Scope, lag: u64, pages: usize, abandoned: bool) {
        let resource_version = self.api.now().saturating_sub(lag).max(1);
        let objects = self.api.selected(scope, resource_version);
        let answer = digest(&objects);
        let whole = head(resource_version, "");
        let may_be_the_last = pages == 1 && !abandoned;
        if may_be_the_last
            && self
                .cache
                .confirm_list(scope, answer, &whole, &NODE, at(0))
                .is_some()
        {
            return;
        }
        let mut token: Option<String> = None;
        for page in 0..pages {
            let mut copy = self
                .cache
                .start_list(scope, token.as_deref(), &NODE, at(0))
                .unwrap();
            let of_page = objects
                .iter()
                .enumerate()
                .filter(|(at, _)| at % pages == page);
            of_page.for_each(|(_, object)| copy.add(object.clone()));
            let last = page + 1 == pages;
            if last && abandoned {
                return;
            }
            let next = if last {
                String::new()
            } else {
                format!("{resource_version}-{page}")
            };
            let filled = self
                .cache
                .finish_list(copy, &head(resource_version, &next), &NODE, at(0));
            if pages == 1 && filled == Filled::Whole {
                self.cache.record_digest(scope, answer);
            }
            token = Some(next);
        }
    }

    fn get(&mut self, name: &'static str, lag: u64) {
        let resource_version = self.api.now().saturating_sub(lag).max(1);
        let scope = one(name);
        match self.api.selected(&scope, resource_version).first() {
            Some(object) => self.get_found(&scope, object.clone()),
            // Only a 404 of now: one of a lagging server has no mark by which it is known.
            None if lag == 0 => self.cache.record_absence(&scope, &NODE, at(0)),
            None => {}
        }
        if lag == 0 {
            assert!(self.overlay_of(name).is_none(), "its overlay has ended");
        }
    }

    fn get_found(&mut self, scope: &Scope, object: Object) {
        let answer = digest(std::slice::from_ref(&object));
        let confirmed = self.cache.confirm_object(scope, answer, &NODE, at(0));
        if confirmed.is_some() {
            return;
        }
        let filled = self
            .cache
            .record_object(scope, &pod_type(), object, &NODE, at(0));
        if filled == Filled::Whole {
            self.cache.record_digest(scope, answer);
        }
    }

    /// What readers see of a local write of this pod; `None`: nothing. Inner `None`: its deletion.
    fn overlay_of(&self, pod_name: &str) -> Option<Option<String>> {
        match self.cache.overlays.shown_object(&pods(), &name(pod_name))? {
            Overlaid::Object(it) => {
                Some(Some(String::from_utf8(it.object.bytes.to_vec()).unwrap()))
            }
            Overlaid::Deleted => Some(None),
            Overlaid::Elsewhere => panic!("all is in JSON"),
        }
    }

    /// What a list of a scope shows: a state of the API server, and local writes over it.
    fn shown(&self, scope: &Scope, resource_version: u64) -> Vec<String> {
        let text = |object: &Object| String::from_utf8(object.bytes.to_vec()).unwrap();
        let selected = self.api.selected(scope, resource_version);
        let mut shown: BTreeMap<String, String> = selected
            .iter()
            .map(|object| (object.metadata.name.clone(), text(object)))
            .collect();
        for pod_name in NAMES {
            let selection = &scope.selection;
            let listed = shown.contains_key(pod_name)
                || (selection.is_by_name_only() && selection.may_contain(&name(pod_name)));
            match self.overlay_of(pod_name) {
                Some(Some(bytes)) if listed => drop(shown.insert(pod_name.to_owned(), bytes)),
                Some(None) => drop(shown.remove(pod_name)),
                Some(Some(_)) | None => {}
            }
        }
        let mut shown: Vec<String> = shown.into_values().collect();
        shown.sort();
        shown
    }

    fn watch(&mut self, scope: &Scope, start: WatchStart, told: u64) {
        if self.watches.len() < 6 {
            let copy = self.cache.start_watch(scope, start);
            self.watches.push(Watch { copy, told });
        }
    }

    fn stream(&mut self, scope: &Scope) {
        let now = self.api.now();
        let mut copy = self.cache.start_watch(scope, WatchStart::Streaming);
        for object in self.api.selected(scope, now) {
            self.cache
                .apply(&mut copy, &event(EventKind::Added, object), &NODE, at(0));
        }
        self.cache
            .apply(&mut copy, &bookmark(now, true), &NODE, at(0));
        self.watches.push(Watch { copy, told: now });
    }

    fn deliver(&mut self, watch: usize, events: usize) {
        let now = self.api.now();
        let Some(watch) = self.watches.get_mut(watch) else {
            return;
        };
        for _ in 0..events {
            if watch.told == now {
                self.cache
                    .apply(&mut watch.copy, &bookmark(now, false), &NODE, at(0));
                return;
            }
            watch.told += 1;
            if let Some(event) = self.api.event(&watch.copy.scope, watch.told) {
                self.cache.apply(&mut watch.copy, &event, &NODE, at(0));
            }
        }
    }

    fn crash(&mut self) {
        self.crashed = true;
        self.cache = cache();
        self.cache.restore(&self.disk);
        // As the owner does after damage; else the disk keeps rows that nothing refers to.
        self.disk.apply(&self.cache.take_everything());
        self.allow_all();
        self.watches.clear();
        self.served.clear();
        self.found.clear();
    }

    /// The claim.
    fn check(&mut self) -> Result<(), TestCaseError> {
        for scope in scopes() {
            let ListAnswer::Found(snapshot) = self.cache.list(&NODE, Verb::List, &scope, at(0))
            else {
                continue;
            };
            let resource_version = snapshot.head.resource_version;
            let text = |item: Item<'_>| String::from_utf8(item.bytes().to_vec()).unwrap();
            let mut items: Vec<String> = snapshot.items().map(text).collect();
            items.sort();
            prop_assert_eq!(items, self.shown(&scope, resource_version), "{:?}", scope);
            let truth: Vec<Object> = snapshot
                .without_overlays()
                .items()
                .map(Item::object)
                .collect();
            prop_assert_eq!(truth, self.api.selected(&scope, resource_version));
            let earlier = self.served.insert(scope, resource_version).unwrap_or(0);
            prop_assert!(earlier <= resource_version);
        }
        for name in NAMES {
            let answer = self.cache.get(&NODE, &one(name), at(0));
            if let Some(overlay) = self.overlay_of(name) {
                // After a crash it may be an earlier one.
                let is_last = self.written.get(name) == Some(&overlay);
                prop_assert!(is_last || self.crashed, "{name}: {overlay:?}");
                let got = match answer {
                    GetAnswer::Found { object, .. } => {
                        Some(String::from_utf8(object.bytes.to_vec()).unwrap())
                    }
                    GetAnswer::Absent { .. } => None,
                    GetAnswer::Unknown | GetAnswer::Denied => {
                        return Err(TestCaseError::fail("an overlay is known to all"));
                    }
                };
                prop_assert_eq!(got, overlay);
                continue;
            }
            if let GetAnswer::Found { object, .. } = answer {
                let version = object.metadata.resource_version;
                prop_assert!(self.api.had(name, version), "{name} never was at {version}");
                let earlier = self.found.insert(name, version).unwrap_or(0);
                prop_assert!(
                    earlier <= version,
                    "{name} went from {earlier} to {version}"
                );
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_served_is_a_past_whole_state_and_never_goes_back(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
            world.check()?;
        }
    }

    #[test]
    fn the_disk_with_all_batches_is_the_memory(
        steps in proptest::collection::vec(step(), 1..40)
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.disk.apply(&world.cache.take_changes());
        let mut everything = Rows::default();
        everything.apply(&world.cache.take_everything());
        prop_assert_eq!(&world.disk, &everything);
        let mut restored = cache();
        restored.restore(&world.disk);
        let mut again = Rows::default();
        again.apply(&restored.take_everything());
        prop_assert_eq!(again, everything);
    }
}
