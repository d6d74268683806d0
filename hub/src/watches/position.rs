//! How far the client of a watch has come. Pure.

use std::time::Duration;

use http::Uri;

use crate::request::options::{AskedVersion, ListOptions};
use crate::wire::{Event, EventKind};

/// What the client has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// A part of what exists: it cannot go on from here.
    InitialEvents,
    /// All up to this resource version.
    At(u64),
}

impl Position {
    /// Before the first event.
    pub(crate) fn of_request(options: &ListOptions) -> Self {
        match options.resource_version {
            AskedVersion::At(version) if !options.send_initial_events => Self::At(version),
            AskedVersion::At(_) | AskedVersion::Any | AskedVersion::Newest => Self::InitialEvents,
        }
    }

    /// After an event.
    pub(crate) fn after(self, event: &Event) -> Self {
        let version = event.object.metadata.resource_version;
        match (event.kind, self) {
            (EventKind::Error { .. }, position) => position,
            (EventKind::Bookmark { .. }, _) if version > 0 => Self::At(version),
            // A cluster may be restored to an earlier version: the last one counts, not the
            // largest.
            (EventKind::Added | EventKind::Modified | EventKind::Deleted, Self::At(_))
                if version > 0 =>
            {
                Self::At(version)
            }
            (_, position) => position,
        }
    }
}

/// The address of the same watch from another position, for the rest of its time.
pub(crate) fn resumed(uri: &Uri, version: u64, rest: Option<Duration>) -> Uri {
    const REPLACED: [&str; 4] = [
        "resourceVersion",
        "resourceVersionMatch",
        "sendInitialEvents",
        "timeoutSeconds",
    ];
    let mut added = vec![format!("resourceVersion={version}")];
    if let Some(rest) = rest {
        added.push(format!("timeoutSeconds={}", rest.as_secs().max(1)));
    }
    with_query(uri, &REPLACED, added)
}

/// The address of the list of what a watch watches, in its newest state.
pub(crate) fn list_of(uri: &Uri) -> Uri {
    const REMOVED: [&str; 6] = [
        "watch",
        "allowWatchBookmarks",
        "resourceVersion",
        "resourceVersionMatch",
        "sendInitialEvents",
        "timeoutSeconds",
    ];
    with_query(uri, &REMOVED, Vec::new())
}

fn with_query(uri: &Uri, removed: &[&str], added: Vec<String>) -> Uri {
    let query = uri.query().unwrap_or_default();
    let kept = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .filter(|pair| !removed.contains(&pair.split('=').next().unwrap_or_default()))
        .map(str::to_owned);
    let query: Vec<String> = kept.chain(added).collect();
    let text = format!("{}?{}", uri.path(), query.join("&"));
    text.parse()
        .expect("it was an address, and only parameters changed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Metadata, Object, TypeMeta};

    fn event(kind: EventKind, resource_version: u64) -> Event {
        Event {
            kind,
            type_meta: TypeMeta::default(),
            object: Object {
                metadata: Metadata {
                    resource_version,
                    ..Metadata::default()
                },
                bytes: "{}".into(),
            },
        }
    }

    #[test]
    fn initial_events_are_no_place_to_go_on_from_until_they_end() {
        let position = Position::InitialEvents.after(&event(EventKind::Added, 7));
        assert_eq!(position, Position::InitialEvents);
        let end = EventKind::Bookmark {
            initial_events_end: true,
        };
        assert_eq!(position.after(&event(end, 9)), Position::At(9));
    }

    #[test]
    fn an_error_does_not_move_a_client() {
        let error = event(EventKind::Error { code: 410 }, 0);
        assert_eq!(Position::At(5).after(&error), Position::At(5));
    }

    #[test]
    fn a_watch_goes_on_with_its_selectors_from_its_last_event() {
        let uri = Uri::from_static(
            "/api/v1/pods?fieldSelector=a%3Db&resourceVersion=5&timeoutSeconds=600&watch=true&sendInitialEvents=true",
        );
        assert_eq!(
            resumed(&uri, 9, Some(Duration::from_secs(60))).to_string(),
            "/api/v1/pods?fieldSelector=a%3Db&watch=true&resourceVersion=9&timeoutSeconds=60"
        );
    }

    #[test]
    fn the_list_of_a_watch_has_its_selectors() {
        let uri = Uri::from_static("/api/v1/pods?labelSelector=a%3Db&resourceVersion=5&watch=true");
        assert_eq!(list_of(&uri), "/api/v1/pods?labelSelector=a%3Db");
    }
}
