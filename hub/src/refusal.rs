//! Answers that say no, as the API server writes them.

use http::header::HeaderName;
use http::{HeaderValue, Response, StatusCode, header};

use crate::upstream::{Body, full};
use crate::wire::Encoding;
use crate::wire::status::Status;

/// Says that an answer is the hub's own: `local; age=341`, in seconds, or `refused`.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("culvert-hub");

/// Clients ask again after this time, in seconds.
const RETRY_AFTER: u32 = 5;

/// 503: the hub does not know.
pub(crate) fn unavailable(reason: &str) -> Response<Body> {
    answer(&Status {
        code: 503,
        reason: "ServiceUnavailable",
        message: format!(
            "culvert-hub cannot reach the API server, and has no answer of its own: {reason}"
        ),
        retry_after_seconds: Some(RETRY_AFTER),
        cause: None,
    })
}

/// 401: no proof.
pub(crate) fn unauthorized() -> Response<Body> {
    answer(&Status {
        code: 401,
        reason: "Unauthorized",
        message: "Unauthorized".to_owned(),
        retry_after_seconds: None,
        cause: None,
    })
}

/// 404: it is known not to exist.
pub(crate) fn not_found(resource: &str, name: &str) -> Response<Body> {
    answer(&Status {
        code: 404,
        reason: "NotFound",
        message: format!("{resource} {name:?} not found"),
        retry_after_seconds: None,
        cause: None,
    })
}

/// 409: it is known to exist.
pub(crate) fn already_exists(resource: &str, name: &str) -> Response<Body> {
    answer(&Status {
        code: 409,
        reason: "AlreadyExists",
        message: format!("{resource} {name:?} already exists"),
        retry_after_seconds: None,
        cause: None,
    })
}

/// 409: the write is about another state or another object of this name.
pub(crate) fn conflict(resource: &str, name: &str, why: &str) -> Response<Body> {
    answer(&Status {
        code: 409,
        reason: "Conflict",
        message: format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"),
        retry_after_seconds: None,
        cause: None,
    })
}

/// 410: the rest of a list that the API server began.
pub(crate) fn expired() -> Response<Body> {
    answer(&Status {
        code: 410,
        reason: "Expired",
        message: "The provided continue parameter is too old: list again from the start".to_owned(),
        retry_after_seconds: None,
        cause: None,
    })
}

/// 504: a later state was asked for than the hub knows.
pub(crate) fn too_large_version(asked: u64, known: u64) -> Response<Body> {
    answer(&Status {
        code: 504,
        reason: "Timeout",
        message: format!("Too large resource version: {asked}, current: {known}"),
        retry_after_seconds: Some(1),
        // client-go asks for any state then, and not for this one until it comes.
        cause: Some("ResourceVersionTooLarge"),
    })
}

/// 429: this identity has enough requests under way.
pub(crate) fn too_many() -> Response<Body> {
    answer(&Status {
        code: 429,
        reason: "TooManyRequests",
        message: "too many requests of this client are under way".to_owned(),
        retry_after_seconds: Some(1),
        cause: None,
    })
}

/// In JSON, which every client reads.
fn answer(status: &Status) -> Response<Body> {
    let mut answer = Response::new(full(status.body(Encoding::Json)));
    *answer.status_mut() =
        StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    let json = HeaderValue::from_static(Encoding::Json.content_type());
    headers.insert(header::CONTENT_TYPE, json);
    // What is known of existence or age is an answer from memory.
    let answered = match status.code {
        404 | 409 | 410 | 504 => "local",
        _ => "refused",
    };
    let answered = HeaderValue::from_static(answered);
    headers.insert(HEADER, answered);
    if let Some(seconds) = status.retry_after_seconds {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}
