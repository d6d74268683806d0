//! Names of nodes, as Kubernetes and DNS spell them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest DNS name without the final dot, in bytes: RFC 1035.
pub const MAX_NAME: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;

/// Name of a node: an RFC 1123 subdomain in lower case, such as `edge-1` or `press.hall-2.example`.
/// Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

/// A text that is not a node name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a node name: use lower-case letters, digits, `-` and `.`, as in `edge-1`")]
pub struct InvalidNodeName(String);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = InvalidNodeName;

    /// # Errors
    /// The text is not an RFC 1123 subdomain of lower-case letters, digits, `-` and `.`, or it is
    /// an IPv4 address.
    fn from_str(text: &str) -> Result<Self, InvalidNodeName> {
        let valid = text.len() <= MAX_NAME
            && text.split('.').all(is_label)
            && text.parse::<std::net::Ipv4Addr>().is_err();
        if valid {
            Ok(Self(text.into()))
        } else {
            Err(InvalidNodeName(text.chars().take(MAX_NAME).collect()))
        }
    }
}

fn is_label(label: &str) -> bool {
    let has_only_valid_bytes = label
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    (1..=MAX_LABEL_LENGTH).contains(&label.len())
        && has_only_valid_bytes
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl TryFrom<String> for NodeName {
    type Error = InvalidNodeName;

    fn try_from(text: String) -> Result<Self, InvalidNodeName> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dns_names_are_node_names() {
        for good in ["edge-1", "a", "press.hall-2.example", "0cafe"] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        let long = "a".repeat(64);
        for bad in [
            "", "Edge", "-a", "a-", "a..b", ".a", "a_b", "10.0.3.7", "a b", "../x", &long,
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
    }
}
