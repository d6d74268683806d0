//! Tokens that the API server has accepted, and its answers to requests for tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use crate::cache::{Clock, Doubt, Identity};
use crate::store::{Batch, Rows, Table};
use crate::wire::edit::{self, Path};
use crate::wire::split::{ObjectSplitter, SplitError};
use crate::wire::{Encoding, Shape};

/// Rows of [`Table::Tokens`] begin with one of these.
const IDENTITY_ROW: &str = "identity:";
const ANSWER_ROW: &str = "answer:";
/// Tokens whose owner is remembered, and answers to requests for tokens; a node has some 110 pods.
pub(crate) const MAX_TOKENS: usize = 4096;
/// What one takes, rounded up.
pub(crate) const TOKEN: usize = 256;
/// Tokens of one owner. A service account may have 100 pods on a node, and each of them a few tokens.
const MAX_TOKENS_OF_OWNER: usize = 512;
/// How long a token is remembered after it has expired: without a link there is no other one.
const EXPIRED_FOR: u64 = 7 * 24 * 3600;

/// A field of a `TokenRequest`.
const EXPIRATION: Path = Path {
    json: &["status", "expirationTimestamp"],
    protobuf: &[3, 2],
};
const BOUND_KIND: Path = Path {
    json: &["spec", "boundObjectRef", "kind"],
    protobuf: &[2, 3, 1],
};
const BOUND_UID: Path = Path {
    json: &["spec", "boundObjectRef", "uid"],
    protobuf: &[2, 3, 4],
};

/// The tokens of the node.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// Owners by the SHA-256 of their token.
    identities: BTreeMap<String, KnownToken>,
    /// Issued tokens by path and digest of the request.
    answers: BTreeMap<String, TokenAnswer>,
    unsaved: Batch,
}

/// A token that the API server has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownToken {
    /// In seconds since 1970; the largest number if it does not say.
    expires: u64,
    /// Text of the identity.
    owner: String,
    /// Not on disk, as what follows.
    doubt: Doubt,
    /// It was shown since old tokens were forgotten last.
    is_used: bool,
}

impl KnownToken {
    fn row(&self) -> Vec<u8> {
        format!("{} {}", self.expires, self.owner).into_bytes()
    }

    fn read(row: &[u8]) -> Option<Self> {
        let (expires, owner) = std::str::from_utf8(row).ok()?.split_once(' ')?;
        Some(Self {
            expires: expires.parse().ok()?,
            owner: owner.to_owned(),
            doubt: Doubt::default(),
            is_used: false,
        })
    }
}

/// The last real answer to a request for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TokenAnswer {
    /// Content type, line feed, body.
    bytes: Bytes,
    /// When the token expires, in seconds since 1970; the largest number if it does not say.
    expires: u64,
    /// The uid of the pod that it is for.
    pod: Option<String>,
}

impl TokenAnswer {
    fn read(bytes: Bytes) -> Self {
        let read = read_answer(&bytes).unwrap_or_default();
        Self {
            bytes,
            expires: read.expires.unwrap_or(u64::MAX),
            pod: read.pod,
        }
    }

    fn is_for_absent_pod(&self, present: Option<&BTreeSet<String>>) -> bool {
        match (&self.pod, present) {
            (Some(pod), Some(present)) => !present.contains(pod),
            (Some(_) | None, Some(_) | None) => false,
        }
    }
}

#[derive(Default)]
struct ReadAnswer {
    expires: Option<u64>,
    pod: Option<String>,
}

fn read_answer(kept: &[u8]) -> Option<ReadAnswer> {
    let line = kept.iter().position(|byte| *byte == b'\n')?;
    let content_type = std::str::from_utf8(&kept[..line]).ok()?;
    let encoding = Encoding::from_content_type(content_type)?;
    read_token_request(encoding, &kept[line + 1..]).ok()
}

fn read_token_request(encoding: Encoding, body: &[u8]) -> Result<ReadAnswer, SplitError> {
    let mut splitter = ObjectSplitter::new(encoding, Shape::Object);
    splitter.push(body)?;
    let (_, request) = splitter.finish()?;
    let expires = edit::time(encoding, &request.bytes, EXPIRATION)?;
    let expires = expires.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let is_pod = edit::text(encoding, &request.bytes, BOUND_KIND)? == "Pod";
    let uid = edit::text(encoding, &request.bytes, BOUND_UID)?;
    Ok(ReadAnswer {
        expires: expires.as_ref().map(Duration::as_secs),
        pod: (is_pod && !uid.is_empty()).then_some(uid),
    })
}

impl Tokens {
    /// Adds what was on disk; what is known already stays.
    pub(super) fn restore(&mut self, rows: &Rows) {
        for (key, value) in rows.starting_with(Table::Tokens, IDENTITY_ROW) {
            if let Some(known) = KnownToken::read(value) {
                let digest = key[IDENTITY_ROW.len()..].to_owned();
                self.identities.entry(digest).or_insert(known);
            }
        }
        for (key, value) in rows.starting_with(Table::Tokens, ANSWER_ROW) {
            let request = key[ANSWER_ROW.len()..].to_owned();
            let answer = TokenAnswer::read(Bytes::copy_from_slice(value));
            self.answers.entry(request).or_insert(answer);
        }
    }

    /// The owner of a token, if the API server has accepted it.
    pub(crate) fn identity_of(&mut self, token_digest: &str) -> Option<Identity> {
        let known = self.identities.get_mut(token_digest)?;
        known.is_used = true;
        Identity::parse(&known.owner)
    }

    /// The API server has accepted this token, which expires at this time in seconds since 1970.
    pub(crate) fn learn_identity(
        &mut self,
        token_digest: &str,
        identity: &Identity,
        expires: Option<u64>,
    ) {
        let known = KnownToken {
            expires: expires.unwrap_or(u64::MAX),
            owner: identity.to_string(),
            doubt: Doubt::default(),
            is_used: true,
        };
        if self.identities.get(token_digest) == Some(&known) {
            return;
        }
        let is_new = !self.identities.contains_key(token_digest);
        if is_new && self.of_owner(&known.owner).count() >= MAX_TOKENS_OF_OWNER {
            self.forget_first(&known.owner.clone());
        }
        if is_new && self.identities.len() >= MAX_TOKENS {
            let largest = self.largest_owner();
            self.forget_first(&largest);
        }
        let key = format!("{IDENTITY_ROW}{token_digest}");
        self.unsaved.put(Table::Tokens, key, known.row());
        self.identities.insert(token_digest.to_owned(), known);
    }

    fn of_owner(&self, owner: &str) -> impl Iterator<Item = (&String, &KnownToken)> {
        self.identities
            .iter()
            .filter(move |(_, known)| known.owner == owner)
    }

    /// The identity with most tokens.
    fn largest_owner(&self) -> String {
        let mut counts = BTreeMap::<&str, usize>::new();
        for known in self.identities.values() {
            *counts.entry(&known.owner).or_default() += 1;
        }
        let largest = counts.into_iter().max_by_key(|(_, count)| *count);
        largest.map_or_else(String::new, |(owner, _)| owner.to_owned())
    }

    /// Forgets the token of this owner that expires first.
    fn forget_first(&mut self, owner: &str) {
        let first = self.of_owner(owner).min_by_key(|(_, known)| known.expires);
        if let Some(digest) = first.map(|(digest, _)| digest.clone()) {
            self.forget(&digest);
        }
    }

    fn forget(&mut self, token_digest: &str) {
        if self.identities.remove(token_digest).is_some() {
            let key = format!("{IDENTITY_ROW}{token_digest}");
            self.unsaved.remove(Table::Tokens, key);
        }
    }

    /// The API server has refused this token. That is believed when it does so again a minute later:
    /// one that has just started refuses good tokens too.
    pub(crate) fn record_refusal(&mut self, token_digest: &str, now: Clock) {
        let Some(known) = self.identities.get_mut(token_digest) else {
            return;
        };
        if known.doubt.is_confirmed_at(now.uptime) {
            self.forget(token_digest);
        }
    }

    /// The last real answer to this request for a token.
    pub(crate) fn answer(&self, request: &str) -> Option<Bytes> {
        Some(self.answers.get(request)?.bytes.clone())
    }

    /// Whether there is an answer to a request for a token of this service account.
    pub(crate) fn has_token_of(&self, namespace: &str, account: &str) -> bool {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token ");
        let next = self.answers.range(path.clone()..).next();
        next.is_some_and(|(request, _)| request.starts_with(&path))
    }

    /// Whether the next answer may take the place of another.
    pub(super) fn is_full(&self) -> bool {
        self.answers.len() >= MAX_TOKENS
    }

    /// Remembers an answer. `present` are the uids of the node's pods, if they are known.
    pub(super) fn record_answer(
        &mut self,
        request: String,
        answer: Bytes,
        present: Option<&BTreeSet<String>>,
    ) {
        if self.answers.len() >= MAX_TOKENS && !self.answers.contains_key(&request) {
            // False is less than true: those of pods that are gone are the first.
            let first = self
                .answers
                .iter()
                .min_by_key(|(_, it)| (!it.is_for_absent_pod(present), it.expires));
            if let Some(first) = first.map(|(request, _)| request.clone()) {
                self.forget_answer(&first);
            }
        }
        let key = format!("{ANSWER_ROW}{request}");
        self.unsaved.put(Table::Tokens, key, answer.to_vec());
        self.answers.insert(request, TokenAnswer::read(answer));
    }

    fn forget_answer(&mut self, request: &str) {
        self.answers.remove(request);
        let key = format!("{ANSWER_ROW}{request}");
        self.unsaved.remove(Table::Tokens, key);
    }

    /// Forgets what has expired at `now`, in seconds since 1970, but no token that is used: the API
    /// server knows better whether it has expired than the clock of this host. Answers for pods that are gone at
    /// once, and what is for no pod a week later. What is for a pod that is there stays: without a
    /// link it is all that this pod gets. `present` are the uids of the node's pods, if they are known.
    pub(super) fn forget_expired(&mut self, now: u64, present: Option<&BTreeSet<String>>) {
        let week_ago = now.saturating_sub(EXPIRED_FOR);
        let mut digests = Vec::new();
        for (digest, known) in &mut self.identities {
            if known.expires < week_ago && !known.is_used {
                digests.push(digest.clone());
            }
            known.is_used = false;
        }
        for digest in digests {
            self.forget(&digest);
        }
        let mut requests = Vec::new();
        for (request, answer) in &self.answers {
            let is_old = answer.pod.is_none() && answer.expires < week_ago;
            let is_useless = answer.expires < now && answer.is_for_absent_pod(present);
            if is_old || is_useless {
                requests.push(request.clone());
            }
        }
        for request in requests {
            self.forget_answer(&request);
        }
    }

    pub(super) fn take_unsaved(&mut self) -> Batch {
        std::mem::take(&mut self.unsaved)
    }

    pub(super) fn unsaved_bytes(&self) -> usize {
        self.unsaved.bytes()
    }

    pub(super) fn put_all(&self, batch: &mut Batch) {
        for (digest, identity) in &self.identities {
            let key = format!("{IDENTITY_ROW}{digest}");
            batch.put(Table::Tokens, key, identity.row());
        }
        for (request, answer) in &self.answers {
            let key = format!("{ANSWER_ROW}{request}");
            batch.put(Table::Tokens, key, answer.bytes.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: Identity = Identity::Node;

    fn user(name: &str) -> Identity {
        Identity::User(name.to_owned())
    }

    /// An answer for a pod, whose token expires then.
    fn answer(pod: &str, expires: u64) -> Bytes {
        let expires = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(expires));
        let body = format!(
            r#"{{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{{"boundObjectRef":{{"kind":"Pod","uid":"{pod}"}}}},"status":{{"token":"t","expirationTimestamp":"{expires}"}}}}"#
        );
        format!("application/json\n{body}").into()
    }

    fn pods(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn the_token_that_expires_first_makes_way() {
        let mut tokens = Tokens::default();
        tokens.learn_identity("0 for ever", &APP, None);
        tokens.learn_identity("1 late", &APP, Some(9_000_000));
        for number in 2..MAX_TOKENS_OF_OWNER as u64 {
            tokens.learn_identity(&format!("{number}"), &APP, Some(number));
        }
        tokens.learn_identity("new", &APP, Some(5_000_000));
        assert_eq!(tokens.identities.len(), MAX_TOKENS_OF_OWNER);
        assert!(tokens.identity_of("2").is_none());
        for known in ["0 for ever", "1 late", "3", "new"] {
            assert!(tokens.identity_of(known).is_some(), "{known}");
        }
    }

    #[test]
    fn a_token_that_is_used_is_not_forgotten_by_a_clock_that_is_ahead() {
        let mut tokens = Tokens::default();
        for digest in ["used", "unused"] {
            tokens.learn_identity(digest, &APP, Some(1));
        }
        tokens.learn_identity("valid", &APP, Some(u64::MAX));
        let now = 2 + EXPIRED_FOR;
        tokens.forget_expired(now, None);
        assert!(tokens.identity_of("used").is_some());
        tokens.forget_expired(now, None);
        assert!(tokens.identity_of("unused").is_none());
        for digest in ["used", "valid"] {
            assert!(tokens.identity_of(digest).is_some(), "{digest}");
        }
    }

    #[test]
    fn who_shows_many_tokens_forgets_its_own() {
        let mut tokens = Tokens::default();
        tokens.learn_identity("quiet", &user("quiet"), Some(1));
        for number in 0..2 * MAX_TOKENS as u64 {
            let greedy = user(&format!("greedy-{}", number % 16));
            tokens.learn_identity(&format!("{number}"), &greedy, Some(100 + number));
        }
        assert!(tokens.identities.len() <= MAX_TOKENS);
        assert_eq!(tokens.identity_of("quiet"), Some(user("quiet")));
    }

    #[test]
    fn a_token_that_is_refused_once_may_meet_an_api_server_that_starts() {
        let at = |seconds| Clock {
            wall: UNIX_EPOCH,
            uptime: Duration::from_secs(seconds),
        };
        let mut tokens = Tokens::default();
        tokens.learn_identity("token", &APP, None);
        tokens.record_refusal("token", at(0));
        tokens.record_refusal("token", at(59));
        assert!(tokens.identity_of("token").is_some());
        tokens.learn_identity("token", &APP, None);
        tokens.record_refusal("token", at(70));
        assert!(tokens.identity_of("token").is_some(), "it was good since");
        tokens.record_refusal("token", at(130));
        assert!(tokens.identity_of("token").is_none());
    }

    #[test]
    fn answers_for_pods_that_are_gone_make_way_and_those_for_present_pods_stay() {
        let mut tokens = Tokens::default();
        let present = pods(&["calico"]);
        tokens.record_answer("/a/calico x".to_owned(), answer("calico", 10), None);
        for number in 0..2 * MAX_TOKENS as u64 {
            let request = format!("/z/cron {number}");
            let answer = answer(&number.to_string(), 100 + number);
            tokens.record_answer(request, answer, Some(&present));
        }
        assert_eq!(tokens.answers.len(), MAX_TOKENS);
        assert!(tokens.answer("/a/calico x").is_some(), "its pod is here");
        assert!(tokens.answer("/z/cron 0").is_none());
        tokens.forget_expired(1_000_000, Some(&present));
        assert_eq!(tokens.answers.len(), 1);
        assert!(tokens.answer("/a/calico x").is_some());
        tokens.forget_expired(1_000_000, None);
        assert_eq!(tokens.answers.len(), 1, "nobody knows the pods");
    }

    #[test]
    fn a_row_of_a_token_is_read_as_it_was_written() {
        let known = KnownToken {
            expires: 7,
            owner: "user:somebody else".to_owned(),
            doubt: Doubt::default(),
            is_used: false,
        };
        assert_eq!(KnownToken::read(&known.row()), Some(known));
        assert_eq!(KnownToken::read(b"user:x"), None);
    }
}
