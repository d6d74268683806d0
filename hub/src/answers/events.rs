//! Events without a link: they are queued, and acknowledged with what was sent.

use std::time::Duration;

use http::{Response, StatusCode};
use serde_json::{Value as Json, json};

use super::local;
use super::write_body::{Write, body, media_type, reads};
use crate::events::NewEvent;
use crate::hub::Hub;
use crate::metrics::EventFate;
use crate::upstream::Body;
use crate::wire::Encoding;

pub(super) fn create(hub: &Hub, write: &Write<'_>) -> Result<Response<Body>, String> {
    let (encoding, type_meta, object) = body(write)?;
    if object.metadata.name.is_empty() {
        return Err("the event has no name".to_owned());
    }
    if !reads(&write.head.headers, encoding) {
        return Err("encodings are not converted here".to_owned());
    }
    let told = object.alone(encoding, &type_meta);
    let new = NewEvent {
        path: write.head.uri.path(),
        group: &write.resource.gvr.group,
        encoding,
        type_meta,
        object,
    };
    let queued = hub.memory.lock().events.create(new);
    count(hub, queued.map_err(|error| error.to_string())?);
    let mut answer = local::ok(encoding, told, Duration::ZERO);
    *answer.status_mut() = StatusCode::CREATED;
    Ok(answer)
}

/// The answer has no more of the event than the patch: the event itself is not in memory.
pub(super) fn patch(hub: &Hub, write: &Write<'_>) -> Result<Response<Body>, String> {
    let content_type = media_type(&write.head.headers);
    let is_merge = matches!(
        content_type,
        "application/merge-patch+json" | "application/strategic-merge-patch+json"
    );
    let mut told = match serde_json::from_slice::<Json>(write.body) {
        Ok(patch) if is_merge && patch.is_object() => patch,
        Ok(_) | Err(_) => Json::Null,
    };
    if told.is_null() || !reads(&write.head.headers, Encoding::Json) {
        return Err("patches of this type are not queued here".to_owned());
    }
    let path = write.head.uri.path();
    let gone = hub.memory.lock().events.patch(path, content_type, &told);
    count(hub, gone);
    let gvr = &write.resource.gvr;
    let api_version = match &*gvr.group {
        "" => gvr.version.clone(),
        group => format!("{group}/{}", gvr.version),
    };
    told["kind"] = json!("Event");
    told["apiVersion"] = json!(api_version);
    told["metadata"] = json!({
        "name": write.resource.name,
        "namespace": write.resource.namespace,
    });
    Ok(local::ok(Encoding::Json, told.to_string(), Duration::ZERO))
}

fn count(hub: &Hub, gone: usize) {
    hub.metrics.events(EventFate::Queued, 1);
    hub.metrics.events(EventFate::Dropped, gone as u64);
}
