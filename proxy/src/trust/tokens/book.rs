//! What tokens are and what becomes of them. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use culvert_api::NodeName;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::clock::UnixTime;

/// Marks the text as a Culvert join token, version 1.
const PREFIX: &str = "culvert1";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
/// For so long an expired token is still known as such, for a better answer than "unknown".
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);
/// More at once are a runaway script.
const MAX_TOKENS: usize = 20_000;

/// The public part of a token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TokenId(String);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A whole token. Its `Debug` hides the secret, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TokenText {
    id: TokenId,
    secret: [u8; SECRET_BYTES],
}

impl TokenText {
    fn random() -> Self {
        Self {
            id: TokenId(HEXLOWER.encode(&rand::random::<[u8; ID_BYTES]>())),
            secret: rand::random(),
        }
    }

    /// The public part.
    pub(crate) fn id(&self) -> &TokenId {
        &self.id
    }

    /// The text for the join command: the secret included.
    pub(crate) fn reveal(&self) -> String {
        format!("{PREFIX}.{}.{}", self.id, HEXLOWER.encode(&self.secret))
    }

    fn digest(&self) -> String {
        HEXLOWER.encode(&Sha256::digest(self.secret))
    }
}

impl FromStr for TokenText {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let mut parts = text.trim().splitn(3, '.');
        let (Some(PREFIX), Some(id), Some(secret)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed);
        };
        let bytes = |text: &str| HEXLOWER.decode(text.as_bytes()).ok();
        match (
            bytes(id),
            bytes(secret).and_then(|secret| secret.try_into().ok()),
        ) {
            (Some(bytes), Some(secret)) if bytes.len() == ID_BYTES => Ok(Self {
                id: TokenId(id.to_owned()),
                secret,
            }),
            _ => Err(TokenError::Malformed),
        }
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenText")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Why a token is refused. Nothing of the secret is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error(
        "this is not a join token: copy the whole command that `culvert-proxy token create` printed"
    )]
    Malformed,
    #[error(
        "this proxy did not make the token {0}, or forgot it long after it expired: is it for \
         another proxy? Make one here with `culvert-proxy token create`"
    )]
    Foreign(TokenId),
    #[error(
        "the secret of token {0} is wrong: copy the whole command that `culvert-proxy token \
         create` printed"
    )]
    WrongSecret(TokenId),
    #[error(
        "token {0} was used already; each works once: make another with `culvert-proxy token \
         create`"
    )]
    Used(TokenId),
    #[error("token {0} expired at {1}: make another with `culvert-proxy token create`")]
    Expired(TokenId, UnixTime),
    #[error("token {0} was revoked: make another with `culvert-proxy token create`")]
    Revoked(TokenId),
}

impl TokenError {
    /// Label for metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Malformed => "malformed_token",
            Self::Foreign(_) => "foreign_token",
            Self::WrongSecret(_) => "wrong_token",
            Self::Used(_) => "used_token",
            Self::Expired(..) => "expired_token",
            Self::Revoked(_) => "revoked_token",
        }
    }
}

/// The store is full.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are {MAX_TOKENS} tokens already: revoke some with `culvert-proxy token revoke`, or \
     wait until they expire"
)]
pub(crate) struct Full;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenState {
    Usable,
    Used,
    Revoked,
    Expired,
}

impl fmt::Display for TokenState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usable => "usable",
            Self::Used => "used",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
        })
    }
}

/// A token as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenView {
    pub(crate) id: TokenId,
    pub(crate) node: NodeName,
    pub(crate) expires: UnixTime,
    pub(crate) state: TokenState,
}

/// All tokens by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Book {
    tokens: BTreeMap<TokenId, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    node: NodeName,
    /// SHA-256 of the secret.
    digest: String,
    expires: UnixTime,
    fate: Fate,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fate {
    Open,
    /// Redeemed by the owner of the key with this digest.
    UsedBy(String),
    Revoked,
}

impl Book {
    pub(super) fn create(
        &mut self,
        node: &NodeName,
        expires: UnixTime,
        now: UnixTime,
    ) -> Result<TokenText, Full> {
        self.prune(now);
        if self.tokens.len() >= MAX_TOKENS {
            return Err(Full);
        }
        let text = TokenText::random();
        let entry = Entry {
            node: node.clone(),
            digest: text.digest(),
            expires,
            fate: Fate::Open,
        };
        self.tokens.insert(text.id.clone(), entry);
        Ok(text)
    }

    /// The node that the token is for. A used one is good for the key that used it only.
    pub(super) fn check(
        &self,
        text: &TokenText,
        key: Option<[u8; 32]>,
        now: UnixTime,
    ) -> Result<NodeName, TokenError> {
        let id = text.id.clone();
        let Some(entry) = self.tokens.get(&id) else {
            return Err(TokenError::Foreign(id));
        };
        if !bool::from(entry.digest.as_bytes().ct_eq(text.digest().as_bytes())) {
            return Err(TokenError::WrongSecret(id));
        }
        match &entry.fate {
            Fate::Revoked => return Err(TokenError::Revoked(id)),
            Fate::UsedBy(owner) if key.is_some_and(|key| HEXLOWER.encode(&key) != *owner) => {
                return Err(TokenError::Used(id));
            }
            Fate::Open | Fate::UsedBy(_) => {}
        }
        if now <= entry.expires {
            Ok(entry.node.clone())
        } else if matches!(entry.fate, Fate::UsedBy(_)) {
            Err(TokenError::Used(id))
        } else {
            Err(TokenError::Expired(id, entry.expires))
        }
    }

    pub(super) fn redeem(
        &mut self,
        text: &TokenText,
        key: [u8; 32],
        now: UnixTime,
    ) -> Result<NodeName, TokenError> {
        let node = self.check(text, Some(key), now)?;
        if let Some(entry) = self.tokens.get_mut(&text.id) {
            entry.fate = Fate::UsedBy(HEXLOWER.encode(&key));
        }
        Ok(node)
    }

    pub(super) fn list(&self, now: UnixTime) -> Vec<TokenView> {
        let view = |(id, entry): (&TokenId, &Entry)| TokenView {
            id: id.clone(),
            node: entry.node.clone(),
            expires: entry.expires,
            state: entry.state(now),
        };
        self.tokens
            .iter()
            .filter(|(_, entry)| !entry.forgotten(now))
            .map(view)
            .collect()
    }

    /// Whether there is such a token.
    pub(super) fn revoke(&mut self, id: &str) -> bool {
        let entry = self.tokens.get_mut(&TokenId(id.to_owned()));
        entry.map(|entry| entry.fate = Fate::Revoked).is_some()
    }

    pub(super) fn revoke_of(&mut self, node: &NodeName) {
        for entry in self.tokens.values_mut().filter(|entry| entry.node == *node) {
            entry.fate = Fate::Revoked;
        }
    }

    fn prune(&mut self, now: UnixTime) {
        self.tokens.retain(|_, entry| !entry.forgotten(now));
    }
}

impl Entry {
    fn state(&self, now: UnixTime) -> TokenState {
        match &self.fate {
            Fate::Revoked => TokenState::Revoked,
            Fate::UsedBy(_) => TokenState::Used,
            Fate::Open if now > self.expires => TokenState::Expired,
            Fate::Open => TokenState::Usable,
        }
    }

    fn forgotten(&self, now: UnixTime) -> bool {
        now.since(self.expires) > REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime::from_seconds(1_700_000_000);
    const HOUR: Duration = Duration::from_secs(3600);
    const KEY: [u8; 32] = [1; 32];

    fn node() -> NodeName {
        "edge-1".parse().unwrap()
    }

    fn book_and_token() -> (Book, TokenText) {
        let mut book = Book::default();
        let token = book.create(&node(), NOW + HOUR, NOW).unwrap();
        (book, token)
    }

    #[test]
    fn a_token_makes_its_node_once_and_again_only_for_the_same_key() {
        let (mut book, token) = book_and_token();
        assert_eq!(book.redeem(&token, KEY, NOW), Ok(node()));
        assert_eq!(
            book.redeem(&token, [2; 32], NOW),
            Err(TokenError::Used(token.id.clone()))
        );
        assert_eq!(
            book.redeem(&token, KEY, NOW),
            Ok(node()),
            "the answer was lost"
        );
        assert_eq!(
            book.redeem(&token, KEY, NOW + HOUR + HOUR),
            Err(TokenError::Used(token.id.clone()))
        );
    }

    #[test]
    fn every_misuse_has_its_own_answer() {
        let (mut book, token) = book_and_token();
        let (other, foreign) = (
            TokenText {
                secret: [7; 32],
                ..token.clone()
            },
            TokenText::random(),
        );
        assert_eq!(
            book.redeem(&other, KEY, NOW),
            Err(TokenError::WrongSecret(token.id.clone()))
        );
        assert_eq!(
            book.redeem(&foreign, KEY, NOW),
            Err(TokenError::Foreign(foreign.id.clone()))
        );
        let late = NOW + HOUR + Duration::from_secs(1);
        assert_eq!(
            book.redeem(&token, KEY, late),
            Err(TokenError::Expired(token.id.clone(), NOW + HOUR))
        );
        assert!(book.revoke(&token.id.0) && !book.revoke("nothing"));
        assert_eq!(
            book.redeem(&token, KEY, NOW),
            Err(TokenError::Revoked(token.id.clone()))
        );
        assert_eq!(
            book.redeem(&other, KEY, NOW),
            Err(TokenError::WrongSecret(token.id.clone())),
            "no news for guessers"
        );
    }

    #[test]
    fn a_removed_nodes_tokens_are_useless() {
        let (mut book, token) = book_and_token();
        book.revoke_of(&"edge-2".parse().unwrap());
        assert_eq!(book.check(&token, None, NOW), Ok(node()));
        book.revoke_of(&node());
        assert!(matches!(
            book.check(&token, None, NOW),
            Err(TokenError::Revoked(_))
        ));
    }

    #[test]
    fn a_token_survives_its_text_form_and_never_shows_its_secret() {
        let token = TokenText::random();
        assert_eq!(token.reveal().parse(), Ok(token.clone()));
        assert_eq!(format!(" {}\n", token.reveal()).parse(), Ok(token.clone()));
        let secret = HEXLOWER.encode(&token.secret);
        assert!(!format!("{token:?}").contains(&secret[..8]));
        let (book, token) = book_and_token();
        assert!(
            !serde_json::to_string(&book)
                .unwrap()
                .contains(&HEXLOWER.encode(&token.secret))
        );
        let text = token.reveal();
        for bad in [
            "",
            "culvert1",
            &text[..text.len() - 1],
            &text.to_uppercase(),
            &text.replace("culvert1", "culvert2"),
            &format!("{text}.x"),
        ] {
            assert_eq!(
                bad.parse::<TokenText>(),
                Err(TokenError::Malformed),
                "{bad}"
            );
        }
    }

    #[test]
    fn long_expired_tokens_are_forgotten() {
        let (mut book, token) = book_and_token();
        let late = NOW + HOUR + REMEMBERED + Duration::from_secs(1);
        assert_eq!(book.list(late), []);
        book.create(&node(), late + HOUR, late).unwrap();
        assert!(matches!(
            book.check(&token, None, late),
            Err(TokenError::Foreign(_))
        ));
    }

    #[test]
    fn a_runaway_script_is_stopped() {
        let mut book = Book::default();
        for _ in 0..MAX_TOKENS {
            book.create(&node(), NOW + HOUR, NOW).unwrap();
        }
        assert!(book.create(&node(), NOW + HOUR, NOW).is_err());
        assert!(
            book.create(&node(), NOW + HOUR, NOW + HOUR + REMEMBERED + HOUR)
                .is_ok()
        );
    }
}
