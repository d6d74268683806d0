//! A write: its head, and the object in its body.

use bytes::Bytes;
use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};

use crate::request::info::ResourceRequest;
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::{Encoding, Object, Shape, TypeMeta};

/// Larger than any object: the API server's own limit is 3 MiB.
pub(super) const MAX_BODY: usize = 4 << 20;

/// A write, of which the body was read.
pub(super) struct Write<'a> {
    pub(super) resource: &'a ResourceRequest,
    pub(super) head: &'a Parts,
    pub(super) body: &'a Bytes,
}

/// The object in the body of a write.
pub(super) fn body(write: &Write<'_>) -> Result<(Encoding, TypeMeta, Object), String> {
    let Some(encoding) = Encoding::from_content_type(media_type(&write.head.headers)) else {
        return Err("bodies of this type are not read here".to_owned());
    };
    let (item_type, object) = split(encoding, write.body).map_err(|error| error.to_string())?;
    Ok((encoding, item_type, object))
}

fn split(encoding: Encoding, body: &[u8]) -> Result<(TypeMeta, Object), SplitError> {
    let mut splitter = ObjectSplitter::new(encoding, Shape::Object);
    splitter.push(body)?;
    splitter.finish()
}

/// Whether the client reads this encoding, be it not the one that it likes best.
pub(super) fn reads(headers: &HeaderMap, encoding: Encoding) -> bool {
    let accepted = accept_text(headers);
    for clause in accepted.split(',') {
        let media_type = clause.split(';').next().unwrap_or_default().trim();
        if media_type == "*/*" || Encoding::from_content_type(media_type) == Some(encoding) {
            return true;
        }
    }
    accepted.is_empty()
}

/// The `Accept` header.
pub(super) fn accept_text(headers: &HeaderMap) -> &str {
    text(headers, header::ACCEPT)
}

/// The `Content-Type`, without its parameters.
pub(super) fn media_type(headers: &HeaderMap) -> &str {
    let content_type = text(headers, header::CONTENT_TYPE);
    let media_type = content_type.split(';').next();
    media_type.unwrap_or_default().trim()
}

fn text(headers: &HeaderMap, name: HeaderName) -> &str {
    match headers.get(name).map(HeaderValue::to_str) {
        Some(Ok(text)) => text,
        Some(Err(_)) | None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_reads_json_though_it_likes_protobuf_better() {
        let mut headers = HeaderMap::new();
        assert!(reads(&headers, Encoding::Json));
        let both = "application/vnd.kubernetes.protobuf,application/json";
        headers.insert(header::ACCEPT, http::HeaderValue::from_static(both));
        assert!(reads(&headers, Encoding::Json));
        assert!(reads(&headers, Encoding::Protobuf));
        let json = http::HeaderValue::from_static("application/json");
        headers.insert(header::ACCEPT, json);
        assert!(!reads(&headers, Encoding::Protobuf));
    }
}
