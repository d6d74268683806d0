//! Reads what the memory of the node lacks: what a copy has lost, what is of before a restore of the
//! cluster, and what present pods need and kubelet has read before it was led to the hub. Clients of a
//! watch that is good would not ask again for days, nor kubelet for a ResourceClaim that it has
//! prepared, and a reboot without a link needs it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Backoff, Drain, jittered};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep};

use crate::cache::Scope;
use crate::hub::Hub;
use crate::reads::Plan;
use crate::request::percent::encode;
use crate::upstream::{Credential, empty};
use crate::wire::{Encoding, Shape};

/// Between two looks. What comes behind for a moment is whole again by the next event, and what a new
/// pod needs kubelet reads itself.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Pauses between two readings of one set that stays behind, or is missing at the API server too.
const FIRST_PAUSE: Duration = Duration::from_secs(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Readings of one look. With `install`, all that the pods of a node need may be missing.
const MAX_AT_ONCE: usize = 100;

/// Reads sets again until the drain begins.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(crate) async fn refill(hub: Arc<Hub>, drain: Drain) -> Result<()> {
    let refilling = async {
        let mut waiting = Waiting::default();
        loop {
            sleep(jittered(CHECK_EVERY)).await;
            if hub.upstream.link.is_up(Credential::Node) {
                refill_once(&hub, &mut waiting).await;
            }
        }
    };
    tokio::select! {
        () = refilling => {}
        () = drain.begun() => {}
    }
    Ok(())
}

/// Sets that are behind or missing.
pub(crate) type Waiting = BTreeMap<Scope, WaitingSet>;

pub(crate) struct WaitingSet {
    due: Instant,
    backoff: Backoff,
}

/// Reads those that were behind or missing at the last look too.
pub(crate) async fn refill_once(hub: &Hub, waiting: &mut Waiting) {
    let mut wanted = hub.memory.lock().cache.behind_of_node();
    wanted.extend(hub.memory.missing_objects());
    waiting.retain(|scope, _| wanted.contains(scope));
    let mut read = 0;
    for scope in wanted {
        let now = Instant::now();
        let Some(set) = waiting.get_mut(&scope) else {
            let waits = WaitingSet {
                due: now,
                backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            };
            waiting.insert(scope, waits);
            continue;
        };
        if now < set.due || read == MAX_AT_ONCE {
            continue;
        }
        read += 1;
        set.due = now + set.backoff.wait();
        let status = read_again(hub, &scope).await;
        tracing::info!(
            scope = scope.text(),
            ?status,
            "what was behind or missing was read"
        );
    }
}

/// Asks as the node, and remembers the answer. `None`: the scope cannot be asked for.
pub(crate) async fn read_again(hub: &Hub, scope: &Scope) -> Option<StatusCode> {
    let mut request = Request::new(empty());
    *request.uri_mut() = path_of(scope).parse().ok()?;
    let accept = HeaderValue::from_str(&accept_of(scope)).ok()?;
    request.headers_mut().insert(header::ACCEPT, accept);
    let plan = Plan::new(&Method::GET, request.uri(), request.headers());
    let Plan::Read(read) = plan else {
        return None;
    };
    if read.scope != *scope {
        return None;
    }
    let answer = hub.read_as_node(read, request).await;
    let status = answer.status();
    let mut body = answer.into_body();
    // The copy is made while it is read.
    while let Some(Ok(_)) = body.frame().await {}
    Some(status)
}

fn path_of(scope: &Scope) -> String {
    let resource = &scope.representation.resource;
    let selection = &scope.selection;
    let mut path = match &*resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    if let Some(namespace) = &selection.namespace {
        path += &format!("/namespaces/{}", encode(namespace));
    }
    path += &format!("/{}", resource.resource);
    let has_selectors =
        !selection.label_selector.is_empty() || !selection.field_selector.is_empty();
    match &selection.name {
        Some(name) if !has_selectors => path += &format!("/{}", encode(name)),
        Some(_) | None => {}
    }
    let mut query = Vec::new();
    if !selection.label_selector.is_empty() {
        query.push(format!(
            "labelSelector={}",
            encode(&selection.label_selector)
        ));
    }
    if !selection.field_selector.is_empty() {
        query.push(format!(
            "fieldSelector={}",
            encode(&selection.field_selector)
        ));
    }
    if scope.representation.shape == Shape::TableOfObjects {
        query.push("includeObject=Object".to_owned());
    }
    if !query.is_empty() {
        path += &format!("?{}", query.join("&"));
    }
    path
}

fn accept_of(scope: &Scope) -> String {
    let encoding = match scope.representation.encoding {
        Encoding::Json => "application/json",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
    };
    let kind = match (scope.representation.shape, &scope.selection.name) {
        (Shape::Object, _) => return encoding.to_owned(),
        (Shape::Metadata, Some(_)) => "PartialObjectMetadata",
        (Shape::Metadata, None) => "PartialObjectMetadataList",
        (Shape::Table | Shape::TableOfObjects, _) => "Table",
    };
    format!("{encoding};as={kind};g=meta.k8s.io;v=v1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, Uri};

    #[test]
    fn the_question_for_a_set_is_read_as_that_set() {
        for path in [
            "/api/v1/pods",
            "/api/v1/nodes/edge-1",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1",
            "/apis/apps/v1/namespaces/a%20b/deployments?labelSelector=app%20in%20(a,b)",
            "/api/v1/namespaces/shop/secrets/key",
        ] {
            for accept in [
                "application/json",
                "application/vnd.kubernetes.protobuf",
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                "application/json;as=Table;g=meta.k8s.io;v=v1",
            ] {
                let plan = |path: &str, accept: &str| {
                    let uri: Uri = path.parse().unwrap();
                    let mut headers = HeaderMap::new();
                    headers.insert(header::ACCEPT, accept.parse().unwrap());
                    match Plan::new(&Method::GET, &uri, &headers) {
                        Plan::Read(read) => Some(read.scope),
                        Plan::Upgrade | Plan::Document(_) | Plan::Write(_) | Plan::Pass => None,
                    }
                };
                let Some(scope) = plan(path, accept) else {
                    continue;
                };
                assert_eq!(
                    plan(&path_of(&scope), &accept_of(&scope)),
                    Some(scope),
                    "{path}"
                );
            }
        }
    }
}
