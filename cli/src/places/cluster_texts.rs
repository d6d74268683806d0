//! Logs of Culvert's pods and events of their namespace, for a bundle.

use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, LogParams};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::object_values;

/// As the manifests have it.
const SELECTOR: &str = "app.kubernetes.io/part-of=culvert";
/// The most pods whose logs are read, and the most of each.
const MOST_PODS: u32 = 100;
const LOG_LINES: i64 = 5_000;
const LOG_BYTES: i64 = 4 << 20;
const MOST_OBJECTS: u32 = 500;

/// A file, what it is, and its text or why there is none.
pub(crate) type ClusterText = (String, String, Result<String, String>);

/// Reads all of it.
pub(super) async fn read(client: &Client, namespace: &str, deadline: Duration) -> Vec<ClusterText> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
    let (logs, events, sets) = tokio::join!(
        logs(&pods, deadline),
        listed(&events, "events.json", deadline),
        listed(&sets, "daemonsets.json", deadline)
    );
    let mut texts = vec![events, sets];
    texts.extend(logs);
    texts
}

async fn listed<K>(api: &Api<K>, path: &str, deadline: Duration) -> ClusterText
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let limit = ListParams::default().limit(MOST_OBJECTS);
    let text = match timeout(deadline, api.list(&limit)).await {
        Ok(Ok(list)) => printed(&list.items).map_err(|error| error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    };
    (path.to_owned(), "of the namespace".to_owned(), text)
}

fn printed<K: Serialize>(objects: &[K]) -> serde_json::Result<String> {
    let mut objects = serde_json::to_value(objects)?;
    object_values::blank(&mut objects);
    serde_json::to_string_pretty(&objects)
}

async fn logs(pods: &Api<Pod>, deadline: Duration) -> Vec<ClusterText> {
    let wanted = ListParams::default().labels(SELECTOR).limit(MOST_PODS);
    let found = match timeout(deadline, pods.list(&wanted)).await {
        Ok(Ok(found)) => found.items,
        Ok(Err(error)) => {
            let why = error.to_string();
            return vec![("logs".to_owned(), "logs of pods".to_owned(), Err(why))];
        }
        Err(_) => {
            let why = "no answer in time".to_owned();
            return vec![("logs".to_owned(), "logs of pods".to_owned(), Err(why))];
        }
    };
    let mut questions = Vec::new();
    for pod in &found {
        let has_restarted = pod.status.as_ref().is_some_and(|status| {
            let containers = status.container_statuses.as_deref().unwrap_or_default();
            containers
                .iter()
                .any(|container| container.restart_count > 0)
        });
        questions.push(log(pods, pod.name_any(), Run::Present, deadline));
        if has_restarted {
            questions.push(log(pods, pod.name_any(), Run::Previous, deadline));
        }
    }
    join_all(questions).await
}

/// Of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Present,
    /// The one before its last restart.
    Previous,
}

async fn log(pods: &Api<Pod>, pod: String, run: Run, deadline: Duration) -> ClusterText {
    let wanted = LogParams {
        previous: run == Run::Previous,
        tail_lines: Some(LOG_LINES),
        limit_bytes: Some(LOG_BYTES),
        timestamps: true,
        ..LogParams::default()
    };
    let text = match timeout(deadline, pods.logs(&pod, &wanted)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    };
    let suffix = if run == Run::Previous {
        ".previous"
    } else {
        ""
    };
    (
        format!("logs/{pod}{suffix}.log"),
        "the end of its log".to_owned(),
        text,
    )
}
