//! What tokens are and what becomes of them. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::TokensError;

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
pub struct TokenId(String);

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
pub struct TokenText {
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
    pub fn id(&self) -> &TokenId {
        &self.id
    }

    /// The text for the join command: the secret included.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}.{}.{}", self.id, HEXLOWER.encode(&self.secret))
    }

    fn digest(&self) -> String {
        HEXLOWER.encode(&Sha256::digest(self.secret))
    }
}

impl FromStr for TokenText {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parts: Vec<&str> = text.trim().splitn(3, '.').collect();
        let [PREFIX, id, secret] = parts[..] else {
            return Err(TokenError::Malformed);
        };
        let Ok(bytes) = HEXLOWER.decode(id.as_bytes()) else {
            return Err(TokenError::Malformed);
        };
        let Ok(secret) = HEXLOWER.decode(secret.as_bytes()) else {
            return Err(TokenError::Malformed);
        };
        match secret.try_into() {
            Ok(secret) if bytes.len() == ID_BYTES => Ok(Self {
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
pub enum TokenError {
    /// It is no token.
    #[error("this is not a join token: copy the whole command that `culvert token create` printed")]
    Malformed,
    /// It is not one of this installation.
    #[error(
        "this proxy did not make the token {0}, or forgot it long after it expired: is it for \
         another proxy? Make one here with `culvert token create`"
    )]
    Foreign(TokenId),
    /// Its secret is another one.
    #[error(
        "the secret of token {0} is wrong: copy the whole command that `culvert token \
         create` printed"
    )]
    WrongSecret(TokenId),
    /// It was used already.
    #[error(
        "token {0} was used already; each works once: make another with `culvert token \
         create`"
    )]
    Used(TokenId),
    /// It has expired.
    #[error("token {0} expired at {1}: make another with `culvert token create`")]
    Expired(TokenId, UnixTime),
    /// It was revoked.
    #[error("token {0} was revoked: make another with `culvert token create`")]
    Revoked(TokenId),
    /// It is for several nodes, and the agent says no name.
    #[error("token {0} is for several nodes: say with --node which one this is")]
    NoNode(TokenId),
    /// It is for another node.
    #[error(
        "token {0} is not for node {1}: join as a node that it was made for, or make one with \
         `culvert token create {1}`"
    )]
    OtherNode(TokenId, NodeName),
}

impl TokenError {
    /// Label for metrics and logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed => "malformed_token",
            Self::Foreign(_) => "foreign_token",
            Self::WrongSecret(_) => "wrong_token",
            Self::Used(_) => "used_token",
            Self::Expired(..) => "expired_token",
            Self::Revoked(_) => "revoked_token",
            Self::NoNode(_) | Self::OtherNode(..) => "other_node",
        }
    }
}

/// The store is full.
#[derive(Debug, thiserror::Error)]
#[error(
    "there are {MAX_TOKENS} tokens already: revoke some with `culvert token revoke`, or \
     wait until they expire"
)]
pub struct Full;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
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

/// A token as it is listed: once for each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Its number.
    pub id: TokenId,
    /// The node.
    pub node: NodeName,
    /// When it can be used no more.
    pub expires: UnixTime,
    /// Whether it can be used.
    pub state: TokenState,
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
    /// The nodes that the token is for. Each may use it once.
    nodes: BTreeMap<NodeName, Fate>,
    /// SHA-256 of the secret.
    digest: String,
    expires: UnixTime,
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
        self.make_space(now)?;
        let text = TokenText::random();
        let entry = Entry {
            nodes: BTreeMap::from([(node.clone(), Fate::Open)]),
            digest: text.digest(),
            expires,
        };
        self.tokens.insert(text.id.clone(), entry);
        Ok(text)
    }

    /// Lets another node use the token, and returns when it expires.
    pub(super) fn add(
        &mut self,
        text: &TokenText,
        node: &NodeName,
        now: UnixTime,
    ) -> Result<UnixTime, TokensError> {
        self.make_space(now)?;
        let expires = self.entry(text)?.expires;
        if now > expires {
            return Err(TokenError::Expired(text.id.clone(), expires).into());
        }
        if let Some(entry) = self.tokens.get_mut(&text.id) {
            entry.nodes.entry(node.clone()).or_insert(Fate::Open);
        }
        Ok(expires)
    }

    /// The node that the token is for: the given one, or its only one. A node's use of it is good
    /// for the key that used it only.
    pub(super) fn check(
        &self,
        text: &TokenText,
        node: Option<&NodeName>,
        key: Option<[u8; 32]>,
        now: UnixTime,
    ) -> Result<NodeName, TokenError> {
        let id = text.id.clone();
        let entry = self.entry(text)?;
        let (node, fate) = entry.node(&id, node)?;
        match fate {
            Fate::Revoked => return Err(TokenError::Revoked(id)),
            Fate::UsedBy(owner) if key.is_some_and(|key| HEXLOWER.encode(&key) != *owner) => {
                return Err(TokenError::Used(id));
            }
            Fate::Open | Fate::UsedBy(_) => {}
        }
        if now <= entry.expires {
            Ok(node.clone())
        } else if matches!(fate, Fate::UsedBy(_)) {
            Err(TokenError::Used(id))
        } else {
            Err(TokenError::Expired(id, entry.expires))
        }
    }

    pub(super) fn redeem(
        &mut self,
        text: &TokenText,
        node: Option<&NodeName>,
        key: [u8; 32],
        now: UnixTime,
    ) -> Result<NodeName, TokenError> {
        let node = self.check(text, node, Some(key), now)?;
        if let Some(entry) = self.tokens.get_mut(&text.id) {
            let used = Fate::UsedBy(HEXLOWER.encode(&key));
            entry.nodes.insert(node.clone(), used);
        }
        Ok(node)
    }

    pub(super) fn list(&self, now: UnixTime) -> Vec<TokenView> {
        let mut views = Vec::new();
        for (id, entry) in &self.tokens {
            if !entry.forgotten(now) {
                views.extend(entry.views(id, now));
            }
        }
        views
    }

    /// Whether there is such a token.
    pub(super) fn revoke(&mut self, id: &str) -> bool {
        let Some(entry) = self.tokens.get_mut(&TokenId(id.to_owned())) else {
            return false;
        };
        for fate in entry.nodes.values_mut() {
            *fate = Fate::Revoked;
        }
        true
    }

    /// The other nodes of a token keep their use of it.
    pub(super) fn revoke_of(&mut self, node: &NodeName) {
        for entry in self.tokens.values_mut() {
            if let Some(fate) = entry.nodes.get_mut(node) {
                *fate = Fate::Revoked;
            }
        }
    }

    /// The token's entry, if the secret is right.
    fn entry(&self, text: &TokenText) -> Result<&Entry, TokenError> {
        let Some(entry) = self.tokens.get(&text.id) else {
            return Err(TokenError::Foreign(text.id.clone()));
        };
        if bool::from(entry.digest.as_bytes().ct_eq(text.digest().as_bytes())) {
            Ok(entry)
        } else {
            Err(TokenError::WrongSecret(text.id.clone()))
        }
    }

    /// Forgets what expired long ago. A node of a token counts as a token of its own.
    fn make_space(&mut self, now: UnixTime) -> Result<(), Full> {
        self.prune(now);
        let uses: usize = self.tokens.values().map(|entry| entry.nodes.len()).sum();
        if uses < MAX_TOKENS { Ok(()) } else { Err(Full) }
    }

    fn prune(&mut self, now: UnixTime) {
        self.tokens.retain(|_, entry| !entry.forgotten(now));
    }
}

impl Entry {
    /// The given node, or the only one, with what became of its use of the token.
    fn node(
        &self,
        id: &TokenId,
        node: Option<&NodeName>,
    ) -> Result<(&NodeName, &Fate), TokenError> {
        match node {
            Some(node) => self
                .nodes
                .get_key_value(node)
                .ok_or_else(|| TokenError::OtherNode(id.clone(), node.clone())),
            None if self.nodes.len() > 1 => Err(TokenError::NoNode(id.clone())),
            None => self
                .nodes
                .first_key_value()
                .ok_or_else(|| TokenError::Revoked(id.clone())),
        }
    }

    fn views(&self, id: &TokenId, now: UnixTime) -> impl Iterator<Item = TokenView> {
        self.nodes.iter().map(move |(node, fate)| TokenView {
            id: id.clone(),
            node: node.clone(),
            expires: self.expires,
            state: match fate {
                Fate::Revoked => TokenState::Revoked,
                Fate::UsedBy(_) => TokenState::Used,
                Fate::Open if now > self.expires => TokenState::Expired,
                Fate::Open => TokenState::Usable,
            },
        })
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
        assert_eq!(book.redeem(&token, None, KEY, NOW), Ok(node()));
        assert_eq!(
            book.redeem(&token, None, [2; 32], NOW),
            Err(TokenError::Used(token.id.clone()))
        );
        assert_eq!(
            book.redeem(&token, None, KEY, NOW),
            Ok(node()),
            "the answer was lost"
        );
        assert_eq!(
            book.redeem(&token, None, KEY, NOW + HOUR + HOUR),
            Err(TokenError::Used(token.id.clone()))
        );
    }

    #[test]
    fn every_misuse_has_its_own_answer() {
        let (mut book, token) = book_and_token();
        let other = TokenText {
            secret: [7; 32],
            ..token.clone()
        };
        let foreign = TokenText::random();
        assert_eq!(
            book.redeem(&other, None, KEY, NOW),
            Err(TokenError::WrongSecret(token.id.clone()))
        );
        assert_eq!(
            book.redeem(&foreign, None, KEY, NOW),
            Err(TokenError::Foreign(foreign.id.clone()))
        );
        let late = NOW + HOUR + Duration::from_secs(1);
        assert_eq!(
            book.redeem(&token, None, KEY, late),
            Err(TokenError::Expired(token.id.clone(), NOW + HOUR))
        );
        assert!(book.revoke(&token.id.0) && !book.revoke("nothing"));
        assert_eq!(
            book.redeem(&token, None, KEY, NOW),
            Err(TokenError::Revoked(token.id.clone()))
        );
        assert_eq!(
            book.redeem(&other, None, KEY, NOW),
            Err(TokenError::WrongSecret(token.id.clone())),
            "no news for guessers"
        );
    }

    #[test]
    fn each_node_of_a_token_may_use_it_once() {
        let (mut book, token) = book_and_token();
        let edge_1 = node();
        let edge_2 = "edge-2".parse().unwrap();
        book.add(&token, &edge_2, NOW).unwrap();
        let used = Err(TokenError::Used(token.id.clone()));
        assert_eq!(
            book.redeem(&token, None, KEY, NOW),
            Err(TokenError::NoNode(token.id.clone()))
        );
        for (node, key) in [(&edge_1, KEY), (&edge_2, [2; 32])] {
            assert_eq!(
                book.redeem(&token, Some(node), key, NOW),
                Ok((*node).clone())
            );
            assert_eq!(book.redeem(&token, Some(node), [3; 32], NOW), used);
        }
        let edge_3: NodeName = "edge-3".parse().unwrap();
        assert_eq!(
            book.redeem(&token, Some(&edge_3), KEY, NOW),
            Err(TokenError::OtherNode(token.id.clone(), edge_3.clone()))
        );
        book.add(&token, &edge_1, NOW).unwrap();
        assert_eq!(
            book.redeem(&token, Some(&edge_1), [3; 32], NOW),
            used,
            "named again is not another use"
        );
        assert!(matches!(
            book.add(&token, &edge_3, NOW + HOUR + HOUR),
            Err(TokensError::Refused(TokenError::Expired(..)))
        ));
        assert_eq!(book.list(NOW).len(), 2);
    }

    #[test]
    fn a_removed_node_takes_no_token_from_others() {
        let (mut book, token) = book_and_token();
        let edge_2 = "edge-2".parse().unwrap();
        book.add(&token, &edge_2, NOW).unwrap();
        book.revoke_of(&node());
        assert_eq!(
            book.check(&token, Some(&node()), None, NOW),
            Err(TokenError::Revoked(token.id.clone()))
        );
        assert_eq!(book.check(&token, Some(&edge_2), None, NOW), Ok(edge_2));
    }

    #[test]
    fn a_removed_nodes_tokens_are_useless() {
        let (mut book, token) = book_and_token();
        book.revoke_of(&"edge-2".parse().unwrap());
        assert_eq!(book.check(&token, None, None, NOW), Ok(node()));
        book.revoke_of(&node());
        assert!(matches!(
            book.check(&token, None, None, NOW),
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
            book.check(&token, None, None, late),
            Err(TokenError::Foreign(_))
        ));
    }

    #[test]
    fn a_runaway_script_is_stopped() {
        let (mut book, token) = book_and_token();
        // Each `create` counts all tokens, so it makes the first and the last one only.
        let entry = book.tokens[&token.id].clone();
        for _ in 2..MAX_TOKENS {
            book.tokens.insert(TokenText::random().id, entry.clone());
        }
        book.create(&node(), NOW + HOUR, NOW).unwrap();
        assert!(book.create(&node(), NOW + HOUR, NOW).is_err());
        assert!(
            book.create(&node(), NOW + HOUR, NOW + HOUR + REMEMBERED + HOUR)
                .is_ok()
        );
    }
}
