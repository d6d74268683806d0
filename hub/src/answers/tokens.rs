//! Requests for tokens of pods. Without a link such a request gets the last real answer to the same
//! request, even if the token in it has expired: the pod may start, and the API server decides
//! later. A token is never made here.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use http::{HeaderValue, Response, StatusCode, header};
use sha2::{Digest, Sha256};

use super::write_body::{MAX_BODY, Write};
use crate::hub::Hub;
use crate::refusal;
use crate::relay::relayed;
use crate::upstream::pool::AnswerBody;
use crate::upstream::{Body, collect, full, remove_hop_by_hop};
use crate::wire::edit::{self, Path, Value};
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::{Encoding, Shape};

/// Kubelet asks again after four fifths of this, so it has a new token soon after the link is back.
/// It would not start a pod with a token that has expired.
const MIN_LIFETIME: Duration = Duration::from_secs(600);

/// A field of a `TokenRequest`.
const EXPIRATION: Path = Path {
    json: &["status", "expirationTimestamp"],
    protobuf: &[3, 2],
};

/// Passes an answer on and remembers it.
pub(super) async fn relay(
    hub: &Hub,
    write: &Write<'_>,
    answer: Response<AnswerBody>,
) -> Response<Body> {
    if answer.headers().contains_key(header::CONTENT_ENCODING) {
        return relayed(answer);
    }
    let (mut head, body) = answer.into_parts();
    let Some(body) = collect(body, MAX_BODY).await else {
        return refusal::unavailable("the answer did not arrive whole");
    };
    let mut kept = Vec::new();
    if let Some(content_type) = head.headers.get(header::CONTENT_TYPE) {
        kept.extend_from_slice(content_type.as_bytes());
    }
    kept.push(b'\n');
    kept.extend_from_slice(&body);
    let key = key(write);
    hub.memory.record_token_answer(key, kept.into());
    remove_hop_by_hop(&mut head.headers);
    Response::from_parts(head, full(body))
}

/// The last real answer, if there was one that can be read.
pub(super) fn replay(hub: &Hub, write: &Write<'_>) -> Option<Response<Body>> {
    let kept = hub.memory.lock().tokens.answer(&key(write))?;
    let line = kept.iter().position(|byte| *byte == b'\n')?;
    let content_type = HeaderValue::from_bytes(&kept[..line]).ok()?;
    let encoding = Encoding::from_content_type(content_type.to_str().ok()?)?;
    let least = SystemTime::now() + MIN_LIFETIME;
    let body = living_until(encoding, &kept[line + 1..], least).ok()?;
    let mut answer = Response::new(full(body));
    *answer.status_mut() = StatusCode::CREATED;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(refusal::HEADER, HeaderValue::from_static("local"));
    Some(answer)
}

/// The answer, which says that its token lives until this time, or longer.
fn living_until(encoding: Encoding, body: &[u8], least: SystemTime) -> Result<Bytes, SplitError> {
    let mut splitter = ObjectSplitter::new(encoding, Shape::Object);
    splitter.push(body)?;
    let (type_meta, mut answer) = splitter.finish()?;
    let expires = edit::time(encoding, &answer.bytes, EXPIRATION)?;
    if let Some(expires) = expires
        && expires >= least
    {
        return Ok(Bytes::copy_from_slice(body));
    }
    let value = Value::time(encoding, least);
    answer.bytes = edit::set(encoding, &answer.bytes, EXPIRATION, &value)?.into();
    Ok(answer.alone(encoding, &type_meta))
}

/// The same service account, pod, audiences and lifetime make the same request: kubelet writes it
/// the same way each time.
fn key(write: &Write<'_>) -> String {
    let mut digest = Sha256::new();
    digest.update(write.head.uri.path());
    digest.update([0]);
    let accept = write.head.headers.get(header::ACCEPT);
    digest.update(accept.map(|value| value.as_bytes()).unwrap_or_default());
    digest.update([0]);
    digest.update(write.body);
    let digest = HEXLOWER.encode(&digest.finalize());
    format!("{} {digest}", write.head.uri.path())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::wire::TypeMeta;

    const TOKEN: Path = Path {
        json: &["status", "token"],
        protobuf: &[3, 1],
    };

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// An answer whose token expires then, in its envelope.
    fn answer(encoding: Encoding, expires: u64) -> Bytes {
        let empty: &[u8] = match encoding {
            Encoding::Json => br#"{"metadata":{"name":"app"},"status":{"token":"real"}}"#,
            // `status.token`
            Encoding::Protobuf => &[0x1a, 6, 0x0a, 4, b'r', b'e', b'a', b'l'],
        };
        let time = Value::time(encoding, at(expires));
        let type_meta = TypeMeta::new("authentication.k8s.io/v1", "TokenRequest");
        let object = crate::wire::Object {
            metadata: crate::wire::Metadata::default(),
            bytes: edit::set(encoding, empty, EXPIRATION, &time)
                .unwrap()
                .into(),
        };
        object.alone(encoding, &type_meta)
    }

    #[test]
    fn an_expired_token_is_said_to_live_a_little_and_nothing_else_changes() {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let told = living_until(encoding, &answer(encoding, 5_000), at(9_000)).unwrap();
            let split = |body: &[u8]| {
                let mut splitter = ObjectSplitter::new(encoding, Shape::Object);
                splitter.push(body).unwrap();
                let (type_meta, object) = splitter.finish().unwrap();
                let token = edit::text(encoding, &object.bytes, TOKEN).unwrap();
                let time = edit::time(encoding, &object.bytes, EXPIRATION).unwrap();
                (type_meta, token, time)
            };
            assert_eq!(split(&told), split(&answer(encoding, 9_000)));
        }
    }

    #[test]
    fn a_token_that_lives_longer_is_told_as_it_is() {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let real = answer(encoding, 9_001);
            assert_eq!(living_until(encoding, &real, at(9_000)).unwrap(), real);
        }
    }
}
