//! Join tokens: created for one node or several, used once by each, stored as a digest only.

mod book;

use std::sync::Arc;
use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::state::{StateDir, StateError, StateFile};
use parking_lot::{Mutex, MutexGuard};

use book::Book;
pub(crate) use book::Full;
pub use book::{TokenError, TokenText, TokenView};

const TOKENS: StateFile = StateFile {
    name: "tokens.json",
    what: "the join tokens that were not used yet",
};

/// A token as it is handed out.
#[derive(Debug)]
pub struct NewToken {
    /// Printed once and never stored.
    pub text: TokenText,
    /// When it can be used no more.
    pub expires: UnixTime,
}

/// The reason why tokens cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The tokens cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The token is not good.
    #[error(transparent)]
    Refused(#[from] TokenError),
    /// There are as many tokens as there may be.
    #[error(transparent)]
    Full(#[from] Full),
    /// There is no such token.
    #[error("there is no token {id}: see `culvert token list`")]
    Unknown {
        /// Its number.
        id: String,
    },
}

/// All tokens. Clones share them.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: StateDir,
    lifetime: Duration,
    book: Mutex<Book>,
}

impl Tokens {
    /// `lifetime` is the default lifetime of a token.
    pub fn open(state: StateDir, lifetime: Duration) -> Result<Self, StateError> {
        let book = state.read(TOKENS)?.unwrap_or_default();
        Ok(Self(Arc::new(Shared {
            state,
            lifetime,
            book: Mutex::new(book),
        })))
    }

    /// Creates a token for the node.
    pub fn create(
        &self,
        node: &NodeName,
        lifetime: Option<Duration>,
    ) -> Result<NewToken, TokensError> {
        let now = UnixTime::now();
        let expires = now + lifetime.unwrap_or(self.0.lifetime);
        let text = self.change(|book| Ok(book.create(node, expires, now)?))?;
        Ok(NewToken { text, expires })
    }

    /// Lets another node use the token.
    pub fn add(&self, text: &TokenText, node: &NodeName) -> Result<NewToken, TokensError> {
        let expires = self.change(|book| book.add(text, node, UnixTime::now()))?;
        Ok(NewToken {
            text: text.clone(),
            expires,
        })
    }

    /// The node that the token is for, if some key could redeem it now: the given one, or its only
    /// one. Changes nothing.
    pub fn check(&self, text: &TokenText, node: Option<&NodeName>) -> Result<NodeName, TokenError> {
        self.book().check(text, node, None, UnixTime::now())
    }

    /// Uses the token of this node up for the owner of the key with this digest. It is on disk when this
    /// returns: a crash before the answer is sent leaves a used token, which the same key may
    /// redeem again.
    pub fn redeem(
        &self,
        text: &TokenText,
        node: Option<&NodeName>,
        key: [u8; 32],
    ) -> Result<NodeName, TokensError> {
        self.change(|book| Ok(book.redeem(text, node, key, UnixTime::now())?))
    }

    /// All tokens, without those that expired long ago.
    pub fn list(&self) -> Vec<TokenView> {
        self.book().list(UnixTime::now())
    }

    /// Deletes a token.
    pub fn revoke(&self, id: &str) -> Result<(), TokensError> {
        self.change(|book| {
            if book.revoke(id) {
                return Ok(());
            }
            Err(TokensError::Unknown {
                id: id.chars().take(64).collect(),
            })
        })
    }

    /// Deletes all tokens of a node.
    pub fn revoke_of(&self, node: &NodeName) -> Result<(), TokensError> {
        self.change(|book| {
            book.revoke_of(node);
            Ok(())
        })
    }

    fn change<T>(
        &self,
        edit: impl FnOnce(&mut Book) -> Result<T, TokensError>,
    ) -> Result<T, TokensError> {
        let mut book = self.book();
        let mut next = book.clone();
        let answer = edit(&mut next)?;
        if next != *book {
            self.0.state.write(TOKENS, &next)?;
            *book = next;
        }
        Ok(answer)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock()
    }
}

/// Checks the file's text and writes it again.
#[cfg(any(test, fuzzing))]
pub(crate) fn rewritten(text: &str) -> Result<String, StateError> {
    let book: Book =
        culvert_proxy_core::state::parse(text, std::path::Path::new(TOKENS.name), TOKENS)?;
    for now in [
        UnixTime::from_seconds(0),
        UnixTime::now(),
        UnixTime::from_seconds(u64::MAX),
    ] {
        for token in book.list(now) {
            drop(format!(
                "{} {} {} {}",
                token.id, token.node, token.expires, token.state
            ));
        }
    }
    let text = culvert_proxy_core::state::text(&book).expect("tokens have a text");
    Ok(String::from_utf8(text).expect("JSON is text"))
}

#[cfg(test)]
mod tests {
    use culvert_proxy_core::testing::FullDisk;

    use super::*;

    #[test]
    fn a_token_that_cannot_be_noted_as_used_is_used_later() {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDir::open(temporary.path()).unwrap();
        let day = Duration::from_secs(24 * 3600);
        let tokens = Tokens::open(state, day).unwrap();
        let node: NodeName = "edge-1".parse().unwrap();
        let token = tokens.create(&node, None).unwrap().text;
        let full = FullDisk::of(temporary.path(), TOKENS.name);
        let redeemed = tokens.redeem(&token, None, [1; 32]);
        assert!(matches!(redeemed, Err(TokensError::State(_))));
        assert!(tokens.create(&node, None).is_err());
        drop(full);
        // Another key may redeem it: the first has got nothing.
        assert_eq!(tokens.redeem(&token, None, [2; 32]).unwrap(), node);
    }
}
