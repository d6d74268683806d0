//! Which users of the cluster may read what a proxy shows, and connect with nodes: the API server says
//! whose a bearer token is (TokenReview), and whether RBAC lets its user do it (SubjectAccessReview).
//! Answers count for a short time only, so that a permission that is withdrawn ends soon, and a page
//! that is read often costs few questions.

mod answers;
mod right;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_proxy_core::clock::UnixTime;
use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::Api;
use kube::api::PostParams;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::Cluster;
use super::identity::{Callers, expires_before, has_audience};
use super::request::{RequestError, ask};
use answers::{Answer, Answers, TokenDigest};
pub use right::ViewRight;

/// Tokens for this audience alone are worth nothing at the API server: for programs. People have
/// tokens for the API server.
pub const VIEW_AUDIENCE: &str = "culvert-view";
/// Real tokens have 1 to 4 KiB.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// Tokens that are reviewed at once.
const MAX_QUESTIONS: usize = 4;
/// How long one waits for that.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// A token that expires within this time is not reviewed again, however the clocks differ.
const LAST_REVIEW_SECONDS: u64 = 90;

/// A user, by the name that the API server gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Viewer(Arc<str>);

impl fmt::Display for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An identity provider may let users choose it, and it stands in lines of the log.
        self.0.escape_debug().fmt(f)
    }
}

/// A user, with all that RBAC goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct User(UserInfo);

impl User {
    /// The viewer with the user's name.
    pub fn viewer(&self) -> Viewer {
        Viewer(self.0.username.as_deref().unwrap_or_default().into())
    }
}

/// Why the owner of a token may not do what was asked.
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
        "user \"{user}\" may not {right} in namespace {namespace}: bind the Role {} there",
        right.role()
    )]
    Forbidden {
        /// The user.
        user: Viewer,
        /// What was asked.
        right: ViewRight,
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

/// Asks the cluster who may do what.
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

    /// The user whose token this is, if it has the right. `client` is the address of the sender.
    ///
    /// # Errors
    /// The user does not have it, or the API server did not say.
    pub async fn user(
        &self,
        token: &str,
        client: IpAddr,
        right: &ViewRight,
    ) -> Result<User, ViewerError> {
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(ViewerError::Malformed);
        }
        let digest = TokenDigest::of(token);
        let answer = match self.answers.get(digest, right, Instant::now()) {
            Some(answer) => answer,
            None => self.ask(digest, token, client, right).await?,
        };
        self.allowed(answer, right)
    }

    /// Whether a user whose token was accepted before still has the right. A token that has expired
    /// meanwhile does not end it: a long connection outlasts its token.
    ///
    /// # Errors
    /// As [`Self::user`].
    pub async fn review_again(
        &self,
        user: &User,
        token: &str,
        client: IpAddr,
        right: &ViewRight,
    ) -> Result<(), ViewerError> {
        let soon = UnixTime::now().seconds() + LAST_REVIEW_SECONDS;
        if !expires_before(token, soon) {
            return self.user(token, client, right).await.map(drop);
        }
        let _turn = self.question_permit().await?;
        let answer = self.authorized(user.clone(), right).await?;
        self.allowed(answer, right).map(drop)
    }

    fn allowed(&self, answer: Answer, right: &ViewRight) -> Result<User, ViewerError> {
        match answer {
            Answer::Allowed(user) => Ok(user),
            Answer::Forbidden(user) => Err(ViewerError::Forbidden {
                user,
                right: right.clone(),
                namespace: self.cluster.namespace.clone(),
            }),
        }
    }

    async fn question_permit(&self) -> Result<SemaphorePermit<'_>, ViewerError> {
        match timeout(TURN_TIMEOUT, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(ViewerError::Busy),
        }
    }

    /// Asks the API server, when it is this token's turn.
    async fn ask(
        &self,
        digest: TokenDigest,
        token: &str,
        client: IpAddr,
        right: &ViewRight,
    ) -> Result<Answer, ViewerError> {
        if !self.callers.may_ask(client, Instant::now()) {
            return Err(ViewerError::TooManyRefusals);
        }
        let _turn = self.question_permit().await?;
        // Another connection with this token may have asked meanwhile.
        if let Some(answer) = self.answers.get(digest, right, Instant::now()) {
            return Ok(answer);
        }
        let user = match self.authenticated(token).await {
            Err(error @ ViewerError::NotAuthenticated(_)) => {
                self.callers.record_refusal(client, Instant::now());
                return Err(error);
            }
            user => user?,
        };
        let answer = self.authorized(user, right).await?;
        let now = Instant::now();
        self.answers.record(digest, right, answer.clone(), now);
        Ok(answer)
    }

    async fn authorized(&self, user: User, right: &ViewRight) -> Result<Answer, RequestError> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.cluster.client.clone());
        let question = SubjectAccessReview {
            spec: right.question(&user, &self.cluster.namespace),
            ..SubjectAccessReview::default()
        };
        let answer = ask(reviews.create(&PostParams::default(), &question)).await?;
        // `denied` is never true together with it.
        if answer.status.is_some_and(|status| status.allowed) {
            Ok(Answer::Allowed(user))
        } else {
            Ok(Answer::Forbidden(user.viewer()))
        }
    }

    async fn authenticated(&self, token: &str) -> Result<User, ViewerError> {
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
fn judge(status: TokenReviewStatus, audience: Option<&str>) -> Result<User, ViewerError> {
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
        Some(user) if user.username.as_ref().is_some_and(|name| !name.is_empty()) => Ok(User(user)),
        _ => refused("it belongs to no user"),
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
}
