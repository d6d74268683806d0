//! The UID of a Node. Kubernetes gives each new Node another one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A UUID has 36 characters.
const MAX_UID: usize = 64;

/// The UID of a Node. A Node that is deleted and created again has another one. Clones share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeUid(Arc<str>);

/// A text that is not a UID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a UID: it has 1 to {MAX_UID} letters, digits and hyphens")]
pub struct InvalidUid(String);

impl FromStr for NodeUid {
    type Err = InvalidUid;

    fn from_str(text: &str) -> Result<Self, InvalidUid> {
        let plain = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if plain && (1..=MAX_UID).contains(&text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidUid(text.chars().take(MAX_UID).collect()))
        }
    }
}

impl TryFrom<String> for NodeUid {
    type Error = InvalidUid;

    fn try_from(text: String) -> Result<Self, InvalidUid> {
        text.parse()
    }
}

impl From<NodeUid> for String {
    fn from(uid: NodeUid) -> Self {
        uid.0.as_ref().to_owned()
    }
}

impl fmt::Display for NodeUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
