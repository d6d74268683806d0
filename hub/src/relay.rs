//! Answers of the API server on their way to a client.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;

use crate::upstream::pool::AnswerBody;
use crate::upstream::{Body, BodyError, remove_hop_by_hop};
use crate::wire::Encoding;

/// The API server is alive and has no time: memory serves reads meanwhile.
pub(crate) fn is_overloaded(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// Whether an answer is written as the request's `Accept` says.
pub(crate) fn is_encoded_as(headers: &HeaderMap, encoding: Encoding) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let Some(Ok(content_type)) = content_type.map(HeaderValue::to_str) else {
        return false;
    };
    is_plain(headers) && Encoding::from_content_type(content_type) == Some(encoding)
}

/// Whether an answer is not compressed.
pub(crate) fn is_plain(headers: &HeaderMap) -> bool {
    let content_encoding = headers.get(header::CONTENT_ENCODING);
    match content_encoding {
        Some(content_encoding) => content_encoding == "identity",
        None => true,
    }
}

/// The answer of the API server as it goes to the client.
pub(crate) fn relayed(answer: Response<AnswerBody>) -> Response<Body> {
    let mut answer = answer.map(|body| body.map_err(BodyError::from).boxed_unsync());
    remove_hop_by_hop(answer.headers_mut());
    answer
}
