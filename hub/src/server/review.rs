//! Finds the owner of a bearer token: the node asks the API server once for each token, by a
//! `TokenReview`, which the role of nodes allows.
//!
//! Where the node may not ask, a token of a service account is read instead. That counts only after
//! the API server has accepted it for a resource: it has checked the signature, which covers the
//! name, and it answers 401 to a token that it does not accept, whatever it allows to strangers.

use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use serde::{Deserialize, Serialize};

use crate::cache::Identity;
use crate::identity::{claimed, service_account};
use crate::upstream::pool::RequestKind;
use crate::upstream::{Credential, Upstream, collect, full};

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// An answer is some 2 KiB; the groups of a person may be many.
const MAX_ANSWER: usize = 256 << 10;
/// Members of this group may do anything: answers to them are not remembered.
const MASTERS: &str = "system:masters";

/// What the API server says of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// It has accepted the token, which is this identity's.
    Accepted(Identity),
    /// The node may not ask. The token names this identity.
    NotAllowed(Option<Identity>),
    /// It has accepted the token. Answers to its owner are not remembered.
    NotRemembered,
    /// It does not accept the token.
    Refused,
    /// It did not answer, or not with a review.
    Unknown,
}

/// Asks as the node for the owner of this token.
pub(crate) async fn review(upstream: &Upstream, token: &str) -> Review {
    let Ok(body) = serde_json::to_vec(&TokenReview::of(token)) else {
        return Review::Unknown;
    };
    let mut request = Request::new(full(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(PATH);
    let json = HeaderValue::from_static("application/json");
    request
        .headers_mut()
        .insert(header::CONTENT_TYPE, json.clone());
    request.headers_mut().insert(header::ACCEPT, json);
    let Ok(answer) = upstream
        .send(Credential::Node, RequestKind::Short, request)
        .await
    else {
        return Review::Unknown;
    };
    match answer.status() {
        StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Review::NotAllowed(claimed(token)),
        status if status.is_success() => match collect(answer.into_body(), MAX_ANSWER).await {
            Some(body) => read(&body),
            None => Review::Unknown,
        },
        _ => Review::Unknown,
    }
}

fn read(body: &[u8]) -> Review {
    let Ok(review) = serde_json::from_slice::<TokenReview>(body) else {
        return Review::Unknown;
    };
    let Some(Status {
        authenticated,
        user,
    }) = review.status
    else {
        return Review::Unknown;
    };
    if !authenticated {
        return Review::Refused;
    }
    if user.username.is_empty() || user.groups.iter().any(|group| group == MASTERS) {
        return Review::NotRemembered;
    }
    match service_account(&user.username) {
        Some(account) => Review::Accepted(account),
        None => Review::Accepted(Identity::User(user.username)),
    }
}

/// `authentication.k8s.io/v1`, as far as it is needed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenReview<'a> {
    api_version: &'a str,
    kind: &'a str,
    #[serde(skip_deserializing)]
    spec: Spec<'a>,
    #[serde(skip_serializing)]
    status: Option<Status>,
}

#[derive(Default, Serialize)]
struct Spec<'a> {
    token: &'a str,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: User,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    groups: Vec<String>,
}

impl<'a> TokenReview<'a> {
    fn of(token: &'a str) -> Self {
        Self {
            api_version: "authentication.k8s.io/v1",
            kind: "TokenReview",
            spec: Spec { token },
            status: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: &str) -> Review {
        let body = format!(
            r#"{{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","metadata":{{}},"spec":{{"token":"t"}},"status":{status}}}"#
        );
        read(body.as_bytes())
    }

    #[test]
    fn an_accepted_token_is_the_named_users() {
        let cart = r#"{"authenticated":true,"user":{"username":"system:serviceaccount:shop:cart","groups":["system:authenticated"]}}"#;
        assert_eq!(
            answered(cart),
            Review::Accepted(Identity::ServiceAccount {
                namespace: "shop".to_owned(),
                name: "cart".to_owned()
            })
        );
        let node = r#"{"authenticated":true,"user":{"username":"node"}}"#;
        assert_eq!(
            answered(node),
            Review::Accepted(Identity::User("node".to_owned())),
            "a user of that name is not the node"
        );
    }

    #[test]
    fn a_token_is_nobodys_whatever_it_names_if_it_is_not_accepted_as_somebodys() {
        for (status, expected) in [
            (
                r#"{"user":{"username":"system:serviceaccount:shop:cart"}}"#,
                Review::Refused,
            ),
            (
                r#"{"authenticated":false,"user":{"username":"a"},"error":"no"}"#,
                Review::Refused,
            ),
            (
                r#"{"authenticated":true,"user":{"username":"root","groups":["system:masters"]}}"#,
                Review::NotRemembered,
            ),
            (r#"{"authenticated":true}"#, Review::NotRemembered),
            ("null", Review::Unknown),
        ] {
            assert_eq!(answered(status), expected, "{status}");
        }
        assert_eq!(read(b"not JSON"), Review::Unknown);
    }
}
