//! What the API server said of tokens a moment ago. Pure except for its lock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::{User, ViewRight, Viewer};

/// How long a permission counts. One that is withdrawn ends within that time.
const ALLOWED_FOR: Duration = Duration::from_secs(30);
/// How long a refusal counts. One that has just got the permission waits for that time.
const FORBIDDEN_FOR: Duration = Duration::from_secs(10);
/// Tokens of users, at the same time. If there are more, all are asked about again.
const MAX_ANSWERS: usize = 1024;

/// Stands for a token, which is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub(super) fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }
}

/// What was said of a token whose user the API server knows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Allowed(User),
    Forbidden(Viewer),
}

impl Answer {
    fn lifetime(&self) -> Duration {
        match self {
            Self::Allowed(_) => ALLOWED_FOR,
            Self::Forbidden(_) => FORBIDDEN_FOR,
        }
    }
}

/// Answers of the last seconds. Tokens that the API server does not accept have none: the number of questions
/// about these has a limit of its own.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<HashMap<(TokenDigest, ViewRight), Dated>>);

#[derive(Debug)]
struct Dated {
    answer: Answer,
    until: Instant,
}

impl Answers {
    pub(super) fn get(
        &self,
        token: TokenDigest,
        right: &ViewRight,
        now: Instant,
    ) -> Option<Answer> {
        let answers = self.0.lock();
        let dated = answers.get(&(token, right.clone()))?;
        if now < dated.until {
            Some(dated.answer.clone())
        } else {
            None
        }
    }

    pub(super) fn record(
        &self,
        token: TokenDigest,
        right: &ViewRight,
        answer: Answer,
        now: Instant,
    ) {
        let mut answers = self.0.lock();
        if answers.len() >= MAX_ANSWERS {
            answers.retain(|_, dated| now < dated.until);
        }
        if answers.len() >= MAX_ANSWERS {
            answers.clear();
        }
        let until = now + answer.lifetime();
        answers.insert((token, right.clone()), Dated { answer, until });
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn ada() -> User {
        User(UserInfo {
            username: Some("ada".to_owned()),
            ..UserInfo::default()
        })
    }

    #[test]
    fn an_answer_counts_for_its_token_and_right_and_for_a_short_time() {
        let answers = Answers::default();
        let now = Instant::now();
        let read = ViewRight::Read;
        for (token, answer) in [
            ("a", Answer::Allowed(ada())),
            ("b", Answer::Forbidden(ada().viewer())),
        ] {
            let lifetime = answer.lifetime();
            let digest = TokenDigest::of(token);
            answers.record(digest, &read, answer.clone(), now);
            let before = now + lifetime - Duration::from_millis(1);
            assert_eq!(answers.get(digest, &read, before), Some(answer));
            assert_eq!(answers.get(digest, &read, now + lifetime), None);
        }
        assert_eq!(answers.get(TokenDigest::of("c"), &read, now), None);
        let connect = ViewRight::Connect("edge-1".parse().expect("a name"));
        assert_eq!(answers.get(TokenDigest::of("a"), &connect, now), None);
    }

    #[test]
    fn the_memory_is_bounded() {
        let answers = Answers::default();
        let now = Instant::now();
        for number in 0..3 * MAX_ANSWERS {
            let token = TokenDigest::of(&number.to_string());
            answers.record(token, &ViewRight::Read, Answer::Allowed(ada()), now);
        }
        assert!(answers.0.lock().len() <= MAX_ANSWERS);
    }
}
