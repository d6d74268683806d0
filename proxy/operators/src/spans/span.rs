//! What a span says: pure conversions to OTLP's messages. Attributes have the names of the access
//! log's fields (docs/logs.md).

use std::time::{Duration, SystemTime};

use culvert_api::NodeName;
use culvert_daemon::VERSION;
use culvert_proxy_core::instance::Instance;
use culvert_proxy_streams::ended::EndedStream;

use super::otlp::any_value::Value;
use super::otlp::{
    AnyValue, ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope,
    KeyValue, Resource, ResourceSpans, ScopeSpans, Span, SpanKind, Status, StatusCode,
};

/// What all spans of this proxy have in common.
pub(super) fn resource(instance: &Instance) -> Resource {
    let host = nix::unistd::gethostname().ok();
    let host = host.map(|host| host.to_string_lossy().into_owned());
    let attributes = [
        text("service.name", Some("culvert-proxy")),
        text("service.version", Some(VERSION)),
        text("service.instance.id", Some(instance.to_string())),
        text("host.name", host),
    ];
    Resource {
        attributes: attributes.into_iter().flatten().collect(),
    }
}

/// The span of a connection. Each is a trace of its own.
pub(super) fn span(ended: EndedStream) -> Span {
    let EndedStream {
        stream,
        ended,
        dial,
        outcome,
        reason,
    } = ended;
    let lasted = Duration::try_from_secs_f64(stream.age_seconds).unwrap_or_default();
    let mut status = None;
    if outcome != "finished" {
        status = Some(Status {
            code: StatusCode::Error.into(),
            message: reason.clone().unwrap_or_default(),
        });
    }
    let attributes = [
        number("stream", stream.stream),
        text("frontend", Some(stream.frontend)),
        text("client.addr", Some(stream.client)),
        text("user_claimed", stream.claimed_user),
        text("original_dst", Some(stream.original_dst)),
        text("node", stream.node.as_ref().map(NodeName::as_str)),
        text("mechanism", Some(stream.path)),
        number("bytes_to_backend", stream.bytes_to_backend),
        number("bytes_to_client", stream.bytes_to_client),
        seconds("dial_s", dial),
        text("outcome", Some(outcome)),
        text("reason", reason),
    ];
    Span {
        trace_id: rand::random::<[u8; 16]>().to_vec(),
        span_id: rand::random::<[u8; 8]>().to_vec(),
        name: "stream".to_owned(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanoseconds(ended.checked_sub(lasted).unwrap_or(ended)),
        end_time_unix_nano: nanoseconds(ended),
        attributes: attributes.into_iter().flatten().collect(),
        status,
    }
}

/// The request that sends them.
pub(super) fn request(resource: Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "culvert_proxy::streams".to_owned(),
        version: VERSION.to_owned(),
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope),
                spans,
            }],
        }],
    }
}

/// How many of the `sent` spans the collector refused for good, and why.
pub(super) fn count_refused(
    answer: ExportTraceServiceResponse,
    sent: usize,
) -> (usize, Option<String>) {
    let Some(partial) = answer.partial_success else {
        return (0, None);
    };
    let refused = usize::try_from(partial.rejected_spans)
        .unwrap_or(0)
        .min(sent);
    let mut reason = None;
    if !partial.error_message.is_empty() {
        reason = Some(partial.error_message);
    }
    (refused, reason)
}

fn text(key: &str, value: Option<impl Into<String>>) -> Option<KeyValue> {
    attribute(key, value.map(|value| Value::StringValue(value.into())))
}

fn number(key: &str, value: u64) -> Option<KeyValue> {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    attribute(key, Some(Value::IntValue(value)))
}

fn seconds(key: &str, value: Option<Duration>) -> Option<KeyValue> {
    let value = value.map(|value| Value::DoubleValue(value.as_secs_f64()));
    attribute(key, value)
}

fn attribute(key: &str, value: Option<Value>) -> Option<KeyValue> {
    Some(KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(value?),
        }),
    })
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}
