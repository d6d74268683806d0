//! Sends the queued events when the link is back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::Drain;
use http::{Method, Request, StatusCode, header};
use memchr::memmem;
use tokio::time::sleep;

use crate::cache::Doubt;
use crate::events::{QueuedEvent, WriteKind};
use crate::hub::Hub;
use crate::metrics::EventFate;
use crate::relay::is_overloaded;
use crate::upstream::pool::RequestKind;
use crate::upstream::{Body, Credential, collect, full};
use crate::wire::Encoding;

/// Five events a second: a thousand of them take three minutes, which the API server does not
/// notice.
const PAUSE: Duration = Duration::from_millis(200);
/// Until the next try after one that failed, and until the next look at an empty queue.
const LATER: Duration = Duration::from_secs(5);
const MAX_ANSWER: usize = 1 << 20;
/// The cause in a 403 that is about the event: nothing can be created in a namespace that ends.
const NAMESPACE_ENDS: &[u8] = b"NamespaceTerminating";

/// Sends until the drain begins.
///
/// # Errors
/// None; the type is that of a supervised task.
pub(crate) async fn send_events(hub: Arc<Hub>, drain: Drain) -> Result<()> {
    let sending = async {
        let mut link = hub.upstream.link.subscribe(Credential::Node);
        let mut doubt = Doubt::default();
        loop {
            // Its sender lives as long as the hub.
            link.wait_for(|link| link.is_up()).await.ok();
            sleep(send_first(&hub, &mut doubt).await).await;
        }
    };
    tokio::select! {
        () = sending => {}
        () = drain.begun() => {}
    }
    Ok(())
}

/// Sends the oldest event; returns how long to wait then. `doubt` is whether the node may send events.
async fn send_first(hub: &Hub, doubt: &mut Doubt) -> Duration {
    let first = hub.memory.lock().events.take_first();
    let Some((place, event)) = first else {
        return LATER;
    };
    let Some(fate) = send(hub, &event, doubt).await else {
        hub.memory.lock().events.put(place, event);
        return LATER;
    };
    hub.metrics.events(fate, 1);
    PAUSE
}

/// Sends an event. `None`: it has to be sent again.
async fn send(hub: &Hub, event: &QueuedEvent, doubt: &mut Doubt) -> Option<EventFate> {
    let sent = hub
        .upstream
        .send(Credential::Node, RequestKind::Short, request(event));
    let answer = sent.await.ok()?;
    let status = answer.status();
    if is_overloaded(status) {
        return None;
    }
    // It is read whole, so that the connection can be used again.
    let body = collect(answer.into_body(), MAX_ANSWER).await;
    if refuses_node(status, &body.unwrap_or_default())
        && !doubt.is_confirmed_at(hub.memory.now().uptime)
    {
        return None;
    }
    // With a conflict, the API server had got it before the link was cut.
    if status.is_success() || status == StatusCode::CONFLICT {
        *doubt = Doubt::default();
        return Some(EventFate::Sent);
    }
    tracing::debug!(%status, path = event.head.path, "an event is not taken");
    Some(EventFate::Refused)
}

/// Whether this is about the node, and not about its event. An API server that has just started refuses
/// all of them for a while.
fn refuses_node(status: StatusCode, body: &[u8]) -> bool {
    match status {
        StatusCode::UNAUTHORIZED => true,
        StatusCode::FORBIDDEN => memmem::find(body, NAMESPACE_ENDS).is_none(),
        _ => false,
    }
}

fn request(event: &QueuedEvent) -> Request<Body> {
    let mut request = Request::new(full(event.body.clone()));
    *request.method_mut() = match event.head.kind {
        WriteKind::Create { .. } => Method::POST,
        WriteKind::Patch => Method::PATCH,
    };
    // Both were read from a request.
    if let Ok(path) = event.head.path.parse() {
        *request.uri_mut() = path;
    }
    let headers = request.headers_mut();
    if let Ok(content_type) = event.head.content_type.parse() {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    let json = http::HeaderValue::from_static(Encoding::Json.content_type());
    headers.insert(header::ACCEPT, json);
    request
}
