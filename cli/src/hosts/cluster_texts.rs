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

/// As the manifests have it: few pods say most, and there is an agent on each edge node.
const FIRST: &str = "app.kubernetes.io/part-of=culvert,\
    app.kubernetes.io/name in (culvert-proxy,culvert-redirector)";
const OTHERS: &str = "app.kubernetes.io/part-of=culvert,\
    app.kubernetes.io/name notin (culvert-proxy,culvert-redirector)";
/// The most pods of either kind whose logs are read, and the most of each.
const MAX_PODS: u32 = 100;
/// The most pods that are counted.
const MAX_COUNTED: u32 = 10_000;
const LOG_LINES: i64 = 5_000;
const LOG_BYTES: i64 = 4 << 20;
const MAX_OBJECTS: u32 = 500;

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
    let limit = ListParams::default().limit(MAX_OBJECTS);
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
    let (mut first, others) = tokio::join!(
        logs_of(pods, FIRST, "logs", deadline),
        logs_of(pods, OTHERS, "logs/agents", deadline)
    );
    first.extend(others);
    first
}

/// Logs of the pods that a selector finds; an item of the name `rest` stands for others.
async fn logs_of(
    pods: &Api<Pod>,
    selector: &str,
    rest: &str,
    deadline: Duration,
) -> Vec<ClusterText> {
    let without = |why: String| (rest.to_owned(), "logs of pods".to_owned(), Err(why));
    let wanted = ListParams::default().labels(selector).limit(MAX_PODS);
    let listed = match timeout(deadline, pods.list(&wanted)).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => return vec![without(error.to_string())],
        Err(_) => return vec![without("no answer in time".to_owned())],
    };
    let mut questions = Vec::new();
    for pod in &listed.items {
        questions.push(log(pods, pod.name_any(), Run::Present, deadline));
        if has_restarted(pod) {
            questions.push(log(pods, pod.name_any(), Run::Previous, deadline));
        }
    }
    let mut texts = join_all(questions).await;
    if listed
        .metadata
        .continue_
        .is_some_and(|more| !more.is_empty())
    {
        let count = count(pods, selector, deadline).await;
        let read = listed.items.len();
        texts.push(without(match count {
            Some(count) => format!("{} more pods are left out", count.saturating_sub(read)),
            None => format!("pods after the first {read} are left out"),
        }));
    }
    texts
}

fn has_restarted(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_deref());
    let mut containers = containers.unwrap_or_default().iter();
    containers.any(|container| container.restart_count > 0)
}

/// How many pods there are. The API server does not count those of a selector.
async fn count(pods: &Api<Pod>, selector: &str, deadline: Duration) -> Option<usize> {
    let all = ListParams::default().labels(selector).limit(MAX_COUNTED);
    let listed = timeout(deadline, pods.list_metadata(&all))
        .await
        .ok()?
        .ok()?;
    Some(listed.items.len())
}

/// Which run of a container.
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server with one proxy, and more agents than are asked.
    fn answer(request: &Request<Body>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let accept = request.headers().get("accept");
        let counts = accept.is_some_and(|accept| {
            let accept = accept.to_str().expect("a text");
            accept.contains("PartialObjectMetadataList")
        });
        let text = if request.uri().path().ends_with("/log") {
            "a line\n".to_owned()
        } else if query.contains("notin") {
            agents(if counts { 140 } else { MAX_PODS }, counts).to_string()
        } else {
            list("PodList", "v1", &[pod("culvert-proxy-1")], "").to_string()
        };
        Response::new(Body::from(text.into_bytes()))
    }

    fn agents(count: u32, counts: bool) -> Value {
        let mut pods = Vec::new();
        for number in 0..count {
            pods.push(pod(&format!("culvert-agent-{number}")));
        }
        if counts {
            let kind = "PartialObjectMetadataList";
            return list(kind, "meta.k8s.io/v1", &pods, "");
        }
        list("PodList", "v1", &pods, "more")
    }

    fn pod(name: &str) -> Value {
        json!({"metadata": {"name": name}})
    }

    fn list(kind: &str, version: &str, items: &[Value], more: &str) -> Value {
        json!({"kind": kind, "apiVersion": version, "metadata": {"continue": more}, "items": items})
    }

    #[tokio::test]
    async fn agents_do_not_push_out_proxies_and_those_left_out_are_counted() {
        let service = tower::service_fn(|request: Request<Body>| {
            let answer = answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let client = Client::new(service, "culvert-system");
        let pods: Api<Pod> = Api::namespaced(client, "culvert-system");
        let texts = logs(&pods, Duration::from_secs(60)).await;
        assert_eq!(texts[0].0, "logs/culvert-proxy-1.log");
        assert_eq!(texts[0].2.as_deref(), Ok("a line\n"));
        assert_eq!(texts.len(), 102);
        let left_out = texts[101].2.as_ref().expect_err("no text");
        assert!(left_out.contains("40"), "{left_out}");
    }
}
