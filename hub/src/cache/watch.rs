//! Watches of the API server advance sets.

use std::sync::Arc;

use super::copies::WatchPosition;
use super::fill::SetTypes;
use super::objects::{HeldObject, name_of};
use super::{Cache, Clock, Filled, Identity, ListCopy, ObjectName, Scope, WatchCopy, WatchStart};
use crate::wire::{Event, EventKind, Object, TypeMeta};

/// What an event did to its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The set has it now.
    Advanced,
    /// The set had it already, from another copy.
    AlreadyInSet,
    /// It went to the shadow of a streaming list.
    Gathered,
    /// The streaming list is complete: what became of the set.
    Initial(Filled),
    /// This watch cannot advance the set: it is not known what came on it before.
    NotJoined,
    /// Something is missing between the set and this event, or the API server ended the watch
    /// with an error: the set is behind.
    Behind,
}

impl Cache {
    /// Begins the copy of a watch. It joins its set wherever that stands at or after the start.
    pub(crate) fn start_watch(&self, scope: &Scope, start: WatchStart) -> WatchCopy {
        let set = self
            .sets
            .get(&scope.representation)
            .and_then(|it| it.get(&scope.selection));
        let position = match start {
            WatchStart::At(resource_version) => WatchPosition::At(resource_version),
            WatchStart::Streaming => WatchPosition::Initial {
                shadow: Box::new(self.new_list(scope)),
                item_type: None,
            },
            WatchStart::Anywhere => WatchPosition::Unknown,
        };
        WatchCopy {
            scope: scope.clone(),
            epoch: set.map_or(0, |it| it.epoch),
            position,
        }
    }

    /// Takes the next event of a watch.
    pub(crate) fn apply(
        &mut self,
        copy: &mut WatchCopy,
        event: &Event,
        reader: &Identity,
        now: Clock,
    ) -> Applied {
        if let EventKind::Error { .. } = event.kind {
            copy.position = WatchPosition::Unknown;
            self.mark_behind(&copy.scope);
            return Applied::Behind;
        }
        let bookmark = matches!(event.kind, EventKind::Bookmark { .. });
        let resource_version = event.object.metadata.resource_version;
        match &mut copy.position {
            WatchPosition::Initial { .. } => self.gather(copy, event, reader, now),
            WatchPosition::Unknown => {
                if bookmark {
                    copy.position = WatchPosition::At(resource_version);
                }
                Applied::NotJoined
            }
            WatchPosition::At(told) if bookmark => {
                let earlier = std::mem::replace(told, resource_version.max(*told));
                self.advance(copy, earlier, event, now)
            }
            WatchPosition::At(told) => {
                let earlier = std::mem::replace(told, resource_version);
                if resource_version <= earlier {
                    // Events of one watch rise. This one cannot be placed: stop believing it.
                    copy.position = WatchPosition::Unknown;
                    self.mark_behind(&copy.scope);
                    return Applied::Behind;
                }
                self.advance(copy, earlier, event, now)
            }
        }
    }

    /// An event of a streaming list before its set is whole.
    fn gather(
        &mut self,
        copy: &mut WatchCopy,
        event: &Event,
        reader: &Identity,
        now: Clock,
    ) -> Applied {
        let WatchPosition::Initial { shadow, item_type } = &mut copy.position else {
            return Applied::NotJoined;
        };
        match event.kind {
            EventKind::Added | EventKind::Modified => shadow.add(event.object.clone()),
            EventKind::Deleted => shadow.remove(&name_of(&event.object.metadata)),
            EventKind::Bookmark {
                initial_events_end: true,
            } => {
                let empty = self.new_list(&copy.scope);
                let shadow = std::mem::replace(&mut **shadow, empty);
                let item = item_type.take().unwrap_or_else(|| event.type_meta.clone());
                return self.finish_streaming(copy, shadow, item, event, reader, now);
            }
            EventKind::Bookmark {
                initial_events_end: false,
            }
            | EventKind::Error { .. } => {}
        }
        item_type.get_or_insert_with(|| event.type_meta.clone());
        Applied::Gathered
    }

    fn finish_streaming(
        &mut self,
        copy: &mut WatchCopy,
        shadow: ListCopy,
        item: TypeMeta,
        end: &Event,
        reader: &Identity,
        now: Clock,
    ) -> Applied {
        let resource_version = end.object.metadata.resource_version;
        copy.position = WatchPosition::At(resource_version);
        if shadow.spoiled {
            self.mark_behind(&copy.scope);
            return Applied::Initial(Filled::Spoiled);
        }
        let types = SetTypes {
            list: Some(item.list()),
            item,
        };
        let filled = self.fill(shadow, resource_version, types, reader, now);
        copy.epoch = self.set_mut(&copy.scope).map_or(0, |set| set.epoch);
        Applied::Initial(filled)
    }

    /// An event of a watch on which all up to `told` had come before.
    fn advance(&mut self, copy: &WatchCopy, told: u64, event: &Event, now: Clock) -> Applied {
        let Some(set) = self.set_mut(&copy.scope) else {
            return Applied::NotJoined;
        };
        let known = set.generation.resource_version;
        let resource_version = event.object.metadata.resource_version;
        if set.epoch != copy.epoch {
            return Applied::NotJoined;
        }
        if resource_version < known {
            if set.is_smaller_for_long(now) {
                set.mark_behind();
            }
            return Applied::AlreadyInSet;
        }
        let bookmark = matches!(event.kind, EventKind::Bookmark { .. });
        if resource_version == known && !bookmark {
            set.smaller_since = None;
            return Applied::AlreadyInSet;
        }
        if told > known {
            set.mark_behind();
            return Applied::Behind;
        }
        set.confirm(resource_version, now);
        // All between the set and this event has come on this watch: nothing is missing any more.
        set.behind = false;
        if !bookmark {
            self.change_member(&copy.scope, event.kind, &event.object);
            self.enforce_bounds();
        }
        Applied::Advanced
    }

    fn change_member(&mut self, scope: &Scope, kind: EventKind, object: &Object) {
        let representation = &scope.representation;
        let name: ObjectName = name_of(&object.metadata);
        self.overlays.end(&representation.resource, &name);
        let is_too_large = object.bytes.len() > self.bounds.object;
        let is_lacking = is_too_large && kind != EventKind::Deleted;
        let held = (kind != EventKind::Deleted && !is_too_large).then(|| {
            let sample = self.objects.sample(representation);
            let object = HeldObject::new(object.clone(), &sample);
            self.objects.share(representation, object)
        });
        let Some(set) = self.set_mut(scope) else {
            return;
        };
        set.unsaved.members.insert(name.clone());
        set.generation.exact = true;
        set.generation.made_by = None;
        set.generation.lacking.remove(&name);
        if is_lacking {
            set.generation.lacking.insert(name.clone());
        }
        let members = Arc::make_mut(&mut set.generation.members);
        let earlier = match held {
            Some(object) => members.insert(name, object),
            None => members.remove(&name),
        };
        if let Some(earlier) = earlier {
            self.objects.release(representation, &earlier);
        }
    }
}
