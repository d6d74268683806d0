//! A 404 to a GET. It is believed only if it is a `Status` of the API server about this very
//! object: load balancers, and API servers that do not know a resource yet, answer 404 too.

use bytes::BytesMut;
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;

use crate::cache::Identity;
use crate::hub::Hub;
use crate::reads::Read;
use crate::refusal;
use crate::relay::is_plain;
use crate::upstream::pool::AnswerBody;
use crate::upstream::{Body, BodyError, full, remove_hop_by_hop};
use crate::wire::edit::{self, Path};
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::{Encoding, Shape};

/// A `Status` has some 300 bytes. A longer body is passed on without a look.
const MAX_STATUS: usize = 64 << 10;

/// `Status`, of which `details.kind` is the resource.
const REASON: Path = Path {
    json: &["reason"],
    protobuf: &[4],
};
const DETAILS_NAME: Path = Path {
    json: &["details", "name"],
    protobuf: &[5, 1],
};
const DETAILS_GROUP: Path = Path {
    json: &["details", "group"],
    protobuf: &[5, 2],
};
const DETAILS_KIND: Path = Path {
    json: &["details", "kind"],
    protobuf: &[5, 3],
};

/// Passes the answer on, and remembers what it says of the object.
pub(crate) async fn relay(
    hub: &Hub,
    reader: &Identity,
    read: &Read,
    answer: Response<AnswerBody>,
) -> Response<Body> {
    let (mut head, mut body) = answer.into_parts();
    let mut begun = BytesMut::new();
    let mut is_whole = false;
    while !is_whole && begun.len() <= MAX_STATUS {
        match body.frame().await {
            Some(Ok(frame)) => begun.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return refusal::unavailable(&culvert_daemon::chain(&error)),
            None => is_whole = true,
        }
    }
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let encoding = content_type.and_then(Encoding::from_content_type);
    if is_whole
        && is_plain(&head.headers)
        && let Some(encoding) = encoding
        && says_absent(encoding, &begun, read).unwrap_or(false)
    {
        hub.record_verdict(reader, read, StatusCode::NOT_FOUND);
    }
    remove_hop_by_hop(&mut head.headers);
    let begun = begun.freeze();
    if is_whole {
        return Response::from_parts(head, full(begun));
    }
    let begun = stream::iter([Ok::<_, BodyError>(Frame::data(begun))]);
    let rest = BodyStream::new(body.map_err(BodyError::from));
    Response::from_parts(head, StreamBody::new(begun.chain(rest)).boxed_unsync())
}

/// Whether this is a `Status` with which the API server says that the object does not exist.
fn says_absent(encoding: Encoding, body: &[u8], read: &Read) -> Result<bool, SplitError> {
    let mut splitter = ObjectSplitter::new(encoding, Shape::Object);
    splitter.push(body)?;
    let (type_meta, status) = splitter.finish()?;
    let resource = &read.scope.representation.resource;
    let name = read.scope.selection.name.as_deref();
    for (path, expected) in [
        (REASON, "NotFound"),
        (DETAILS_NAME, name.unwrap_or_default()),
        (DETAILS_KIND, &resource.resource),
        (DETAILS_GROUP, &resource.group),
    ] {
        if edit::text(encoding, &status.bytes, path)? != expected {
            return Ok(false);
        }
    }
    Ok(type_meta.kind == "Status" && name.is_some())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method, Uri};

    use super::*;
    use crate::reads::Plan;

    fn is_believed(body: &str) -> bool {
        let uri = Uri::from_static("/apis/apps/v1/namespaces/shop/deployments/cart");
        let Plan::Read(read) = Plan::new(&Method::GET, &uri, &HeaderMap::new()) else {
            panic!("that is a read");
        };
        says_absent(Encoding::Json, body.as_bytes(), &read).unwrap_or(false)
    }

    #[test]
    fn only_the_api_servers_word_about_this_object_is_believed() {
        let status = |name: &str, rest: &str| {
            format!(
                r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","code":404,{rest}
                "details":{{"name":"{name}","group":"apps","kind":"deployments"}}}}"#
            )
        };
        assert!(is_believed(&status("cart", r#""reason":"NotFound","#)));
        assert!(!is_believed(&status("other", r#""reason":"NotFound","#)));
        assert!(!is_believed(&status("cart", "")));
        for body in [
            "default backend - 404",
            "",
            "{}",
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"reason":"NotFound","details":{},"code":404}"#,
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"reason":"NotFound","details":{"name":"cart","kind":"pods"}}"#,
        ] {
            assert!(!is_believed(body), "{body}");
        }
    }
}
