//! Follows one object of the API server by name.

use std::fmt::Debug;

use culvert_daemon::Problem;
use futures_util::{Stream, StreamExt};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::WATCH_SECONDS;

/// The object now and after each change. `None`: it does not exist. The stream never ends. While
/// the API server does not answer, it has no items, and `report` gets each new reason.
pub(super) fn follow_object<K, F>(
    api: Api<K>,
    name: &str,
    report: F,
) -> impl Stream<Item = Option<K>> + Send + use<K, F>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Fn(&str) + Send,
{
    let mut problem = Problem::default();
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECONDS);
    let events = watcher::watcher(api, config).default_backoff();
    // Whether the current list contains it.
    let mut listed = false;
    events.filter_map(move |event| {
        if event.is_ok() {
            problem.record(None);
        }
        let news = match event {
            Ok(Event::Init) => {
                listed = false;
                None
            }
            Ok(Event::InitApply(object)) => {
                listed = true;
                Some(Some(object))
            }
            Ok(Event::Apply(object)) => Some(Some(object)),
            Ok(Event::Delete(_)) => Some(None),
            Ok(Event::InitDone) if listed => None,
            Ok(Event::InitDone) => Some(None),
            Err(error) => {
                if let Some(reason) = problem.record(Some(in_words(&error))) {
                    report(reason);
                }
                None
            }
        };
        std::future::ready(news)
    })
}

/// The error without kube's internals.
pub(super) fn in_words(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => format!(
            "the API server answered {}: {}",
            status.code, status.message
        ),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => culvert_daemon::chain(error),
    }
}
