//! Kubernetes Events, for `kubectl describe node`: a node is offline, shares its address, or claims
//! one that is not its own. Also for `kubectl describe configmap`: a ConfigMap of ports is invalid.
//!
//! Every proxy reports. All proxies use the same name for the Event of one occurrence, so the first
//! proxy creates it, and the others find it. Nothing waits for an Event, and nothing fails without
//! one.

mod attention;
mod occurrence;
mod queue;

use std::time::{Duration, Instant};

use anyhow::Result;
use culvert_daemon::{Drain, Problem};
use culvert_proxy_core::directory::Directory;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::Cluster;
use super::request::{RequestError, ask};
use attention::Attention;
pub(crate) use occurrence::Occurrence;
use occurrence::continued;
use queue::Queue;

/// The interval of looking for due Events.
const TICK: Duration = Duration::from_secs(1);
/// Events that are written in a tick. A proxy that loses all its tunnels must not overload the API
/// server.
const PER_TICK: usize = 5;
/// The pause after the API server has not answered.
const PAUSE: Duration = Duration::from_secs(30);
/// Capacity for occurrences from other tasks.
const BACKLOG: usize = 16;
/// The API server's limit for the name of a reporting instance.
const MAX_INSTANCE_CHARS: usize = 128;

/// The sender for occurrences from other tasks. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Events(mpsc::Sender<Occurrence>);

/// The receiver of occurrences.
pub(crate) type Occurrences = mpsc::Receiver<Occurrence>;

/// The result of writing an Event.
enum Written {
    /// It exists, or the API server will never accept it. Another attempt is pointless.
    Done,
    /// The API server did not answer.
    Later,
}

impl Events {
    /// Both ends of the channel.
    pub(crate) fn channel() -> (Self, Occurrences) {
        let (told_tx, told) = mpsc::channel(BACKLOG);
        (Self(told_tx), told)
    }

    /// Reports an occurrence without waiting. If there is no capacity, it is only logged.
    pub(super) fn report(&self, occurrence: Occurrence) {
        if let Err(error) = self.0.try_send(occurrence) {
            tracing::debug!(%error, "Event dropped");
        }
    }
}

impl Cluster {
    /// Writes Events about the directory and about reported occurrences until the drain begins.
    pub(crate) async fn write_events(
        self,
        directory: Directory,
        mut told: Occurrences,
        drain: Drain,
    ) -> Result<()> {
        let mut writer = Writer::new(self);
        let mut watcher = directory.watch();
        let mut attention = Attention::default();
        let mut queue = Queue::default();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_write = Instant::now();
        loop {
            tokio::select! {
                event = watcher.next() => queue.extend(attention.see(&event, Instant::now())),
                Some(occurrence) = told.recv() => queue.extend([occurrence]),
                _ = ticks.tick() => {
                    queue.extend(attention.due(Instant::now()));
                    queue.extend(attention.left_out(directory.left_out()));
                    if Instant::now() >= next_write {
                        next_write = writer.write_some(&mut queue, &drain).await;
                    }
                }
                () = drain.begun() => return Ok(()),
            }
        }
    }
}

struct Writer {
    cluster: Cluster,
    instance: String,
    problem: Problem,
}

impl Writer {
    fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            instance: instance(),
            problem: Problem::default(),
        }
    }

    /// Writes the next few. Returns the time of the next call.
    async fn write_some(&mut self, queue: &mut Queue, drain: &Drain) -> Instant {
        for _ in 0..PER_TICK {
            let Some(occurrence) = queue.pop() else { break };
            let written = tokio::select! {
                written = self.write(&occurrence) => written,
                () = drain.begun() => break,
            };
            if matches!(written, Written::Later) {
                queue.put_back(occurrence);
                return Instant::now() + PAUSE;
            }
        }
        Instant::now()
    }

    async fn write(&mut self, occurrence: &Occurrence) -> Written {
        let error = match self.try_write(occurrence).await {
            Ok(()) => {
                self.problem.record(None);
                return Written::Done;
            }
            Err(error) => error,
        };
        if let Some(reason) = self.problem.record(Some(culvert_daemon::chain(&error))) {
            tracing::warn!(reason, "Events not written; nothing else suffers");
        }
        match error {
            RequestError::Answer { code, .. } if code != 429 && code < 500 => Written::Done,
            RequestError::Answer { .. } | RequestError::TimedOut | RequestError::Failed(_) => {
                Written::Later
            }
        }
    }

    async fn try_write(&self, occurrence: &Occurrence) -> Result<(), RequestError> {
        let events: Api<Event> =
            Api::namespaced(self.cluster.client.clone(), occurrence.namespace());
        let event = occurrence.event(&self.instance, Timestamp::now());
        match ask(events.create(&PostParams::default(), &event)).await {
            Err(error) if error.is_conflict() => {}
            made => return made.map(drop),
        }
        count_again(&events, &event.metadata.name.unwrap_or_default()).await
    }
}

/// Counts an Event that exists once more.
async fn count_again(events: &Api<Event>, name: &str) -> Result<(), RequestError> {
    // An empty patch changes nothing and returns the object. So no further permission is
    // necessary to read it.
    let there = match patch(events, name, json!({})).await {
        Ok(there) => there,
        Err(error) => return unless_overtaken(error),
    };
    let Some(series) = continued(&there, Timestamp::now()) else {
        return Ok(());
    };
    let version = there.metadata.resource_version;
    let counted = json!({"metadata": {"resourceVersion": version}, "series": series});
    match patch(events, name, counted).await {
        Ok(_) => Ok(()),
        Err(error) => unless_overtaken(error),
    }
}

async fn patch(
    events: &Api<Event>,
    name: &str,
    patch: serde_json::Value,
) -> Result<Event, RequestError> {
    ask(events.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
}

/// Another proxy was faster with the same report, or the Event has just expired.
fn unless_overtaken(error: RequestError) -> Result<(), RequestError> {
    match error {
        RequestError::Answer {
            code: 404 | 409, ..
        } => Ok(()),
        RequestError::Answer { .. } | RequestError::TimedOut | RequestError::Failed(_) => {
            Err(error)
        }
    }
}

/// The host's name, which is the node's for a pod in the host's network.
fn instance() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "culvert-proxy".to_owned(),
        name => name.chars().take(MAX_INSTANCE_CHARS).collect(),
    }
}
