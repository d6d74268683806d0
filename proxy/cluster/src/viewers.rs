//! Who may read what a proxy shows: the API server says whose a bearer token is (TokenReview), and
//! whether RBAC lets its user read (SubjectAccessReview). Answers count for a short time only, so that
//! a permission that is withdrawn ends soon, and a page that is read often costs few questions.

mod answers;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Cluster;
use super::identity::{Callers, has_audience};
use super::request::{RequestError, ask};
use answers::{Answer, Answers, TokenDigest};

/// Tokens for this audience alone are worth nothing at the API server: for programs. People have
/// tokens for the API server.
pub const VIEW_AUDIENCE: &str = "culvert-view";
/// What RBAC has to allow, in the proxy's namespace: to `get` `proxies` of the group `culvert.dev`. No
/// such resource exists.
const GROUP: &str = "culvert.dev";
const RESOURCE: &str = "proxies";
const VERB: &str = "get";
/// Real tokens have 1 to 4 KiB.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Tokens that are reviewed at once.
const MAX_QUESTIONS: usize = 4;
/// How long one waits for that.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// A user, by the name that the API server gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Viewer(Arc<str>);

impl fmt::Display for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An identity provider may let users choose it, and it stands in lines of the log.
        self.0.escape_debug().fmt(f)
    }
}

/// Why the owner of a token may not read.
#[derive(Debug, thiserror::Error)]
pub enum ViewerError {
    /// It cannot be a token.
    #[error("this is no bearer token")]
    Malformed,
    /// The API server does not accept it.
    #[error(
        "the API server does not accept the token ({0}): it has expired, or is of another cluster"
    )]
    NotAuthenticated(String),
    /// RBAC does not allow it.
    #[error(
        "{user} may not {VERB} {RESOURCE}.{GROUP} in namespace {namespace}: bind the Role \
         culvert-view there"
    )]
    Forbidden {
        /// The user.
        user: Viewer,
        /// The proxies' namespace.
        namespace: String,
    },
    /// This address had too many tokens refused.
    #[error("too many tokens of this address were refused: try again in a minute")]
    TooManyRefusals,
    /// Too many tokens are being reviewed.
    #[error("too many ask at once: try again")]
    Busy,
    /// The API server did not say.
    #[error("the cluster cannot be asked about the token")]
    Unanswered(#[from] RequestError),
}

/// Asks the cluster who may read.
#[derive(Debug)]
pub struct Viewers {
    cluster: Cluster,
    turns: Semaphore,
    callers: Callers,
    answers: Answers,
}

impl Viewers {
    /// Asks this cluster.
    pub fn new(cluster: Cluster) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            turns: Semaphore::new(MAX_QUESTIONS),
            callers: Callers::default(),
            answers: Answers::default(),
        })
    }

    /// The user whose token this is. `client` is the address of the sender.
    ///
    /// # Errors
    /// The user may not read, or the API server did not say.
    pub async fn viewer(&self, token: &str, client: IpAddr) -> Result<Viewer, ViewerError> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(ViewerError::Malformed);
        }
        let digest = TokenDigest::of(token);
        let answer = match self.answers.get(&digest, Instant::now()) {
            Some(answer) => answer,
            None => self.ask(digest, token, client).await?,
        };
        match answer {
            Answer::Allowed(viewer) => Ok(viewer),
            Answer::Forbidden(user) => Err(ViewerError::Forbidden {
                user,
                namespace: self.cluster.namespace.clone(),
            }),
        }
    }

    /// Asks the API server, when it is this token's turn.
    async fn ask(
        &self,
        digest: TokenDigest,
        token: &str,
        client: IpAddr,
    ) -> Result<Answer, ViewerError> {
        if !self.callers.may_ask(client, Instant::now()) {
            return Err(ViewerError::TooManyRefusals);
        }
        let turn = timeout(TURN_TIMEOUT, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(ViewerError::Busy);
        };
        // Another connection with this token may have asked meanwhile.
        if let Some(answer) = self.answers.get(&digest, Instant::now()) {
            return Ok(answer);
        }
        let user = match self.authenticated(token).await {
            Err(error @ ViewerError::NotAuthenticated(_)) => {
                self.callers.record_refusal(client, Instant::now());
                return Err(error);
            }
            user => user?,
        };
        let answer = self.authorized(user).await?;
        self.answers.record(digest, answer.clone(), Instant::now());
        Ok(answer)
    }

    async fn authorized(&self, user: UserInfo) -> Result<Answer, RequestError> {
        let viewer = Viewer(user.username.clone().unwrap_or_default().into());
        let reviews: Api<SubjectAccessReview> = Api::all(self.cluster.client.clone());
        let question = SubjectAccessReview {
            spec: may_read(user, &self.cluster.namespace),
            ..SubjectAccessReview::default()
        };
        let answer = ask(reviews.create(&PostParams::default(), &question)).await?;
        // `denied` is never true together with it.
        if answer.status.is_some_and(|status| status.allowed) {
            Ok(Answer::Allowed(viewer))
        } else {
            Ok(Answer::Forbidden(viewer))
        }
    }

    async fn authenticated(&self, token: &str) -> Result<UserInfo, ViewerError> {
        let audience = has_audience(token, VIEW_AUDIENCE).then_some(VIEW_AUDIENCE);
        let reviews: Api<TokenReview> = Api::all(self.cluster.client.clone());
        let question = TokenReview {
            spec: TokenReviewSpec {
                // None: the API server's own.
                audiences: audience.map(|audience| vec![audience.to_owned()]),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        let answer = ask(reviews.create(&PostParams::default(), &question)).await?;
        judge(answer.status.unwrap_or_default(), audience)
    }
}

/// The user of a reviewed token that was to be for `audience`, or for the API server.
fn judge(status: TokenReviewStatus, audience: Option<&str>) -> Result<UserInfo, ViewerError> {
    let refused = |reason: &str| {
        let reason = reason.chars().take(300).collect();
        Err(ViewerError::NotAuthenticated(reason))
    };
    if status.authenticated != Some(true) {
        let error = status.error.unwrap_or_default();
        return refused(&error);
    }
    // An API server that does not know audiences accepts any token, and answers without an audience.
    let audiences = status.audiences.unwrap_or_default();
    if let Some(audience) = audience
        && !audiences.iter().any(|found| found == audience)
    {
        return refused("it is for another audience");
    }
    match status.user {
        Some(user) if user.username.as_ref().is_some_and(|name| !name.is_empty()) => Ok(user),
        _ => refused("it is nobody's"),
    }
}

/// The question whether a user may read what the proxies of this namespace show.
fn may_read(user: UserInfo, namespace: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: user.username,
        uid: user.uid,
        groups: user.groups,
        extra: user.extra,
        resource_attributes: Some(ResourceAttributes {
            group: Some(GROUP.to_owned()),
            resource: Some(RESOURCE.to_owned()),
            verb: Some(VERB.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        }),
        non_resource_attributes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(audiences: &[&str]) -> TokenReviewStatus {
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(audiences.iter().map(ToString::to_string).collect()),
            user: Some(UserInfo {
                username: Some("ada".to_owned()),
                groups: Some(vec!["sre".to_owned()]),
                ..UserInfo::default()
            }),
            error: None,
        }
    }

    #[test]
    fn a_token_counts_if_the_api_server_accepts_it_for_the_audience_that_was_asked_for() {
        judge(status(&["https://kubernetes.default.svc"]), None).expect("for the API server");
        judge(status(&[VIEW_AUDIENCE]), Some(VIEW_AUDIENCE)).expect("for the view");
        judge(status(&[]), Some(VIEW_AUDIENCE)).expect_err("an API server without audiences");
        for authenticated in [None, Some(false)] {
            let refused = TokenReviewStatus {
                authenticated,
                ..status(&[])
            };
            judge(refused, None).expect_err("not authenticated");
        }
        for user in [None, Some(UserInfo::default())] {
            let nobody = TokenReviewStatus {
                user,
                ..status(&[])
            };
            judge(nobody, None).expect_err("nobody");
        }
    }

    #[test]
    fn rbac_is_asked_about_the_whole_user() {
        let user = judge(status(&[]), None).expect("a user");
        let spec = may_read(user, "culvert-system");
        assert_eq!(spec.user.as_deref(), Some("ada"));
        assert_eq!(spec.groups, Some(vec!["sre".to_owned()]));
        let asked = spec.resource_attributes.expect("a resource");
        assert_eq!(asked.namespace.as_deref(), Some("culvert-system"));
        assert_eq!(asked.verb.as_deref(), Some("get"));
    }
}
