//! The DNS zone of the nodes' names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::NodeName;
use crate::node_names::is_below;

/// A DNS zone that may follow node names, such as `edge.internal`: lower case, without a trailing
/// dot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(String);

/// A text that is not a zone.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a DNS zone: write one such as edge.internal")]
pub struct InvalidZone(String);

/// Longest text of a zone that an error repeats.
const MAX_SHOWN: usize = 300;

impl Zone {
    /// The zone as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The node's name inside the zone: followed by it, unless it already is.
    #[must_use]
    pub fn full_name(&self, node: &NodeName) -> String {
        if is_below(node.as_str(), &self.0) {
            node.to_string()
        } else {
            format!("{node}.{self}")
        }
    }
}

impl FromStr for Zone {
    type Err = InvalidZone;

    /// Parses a DNS name. Converts it to lower case and removes a trailing dot.
    ///
    /// # Errors
    /// The text could not be a node's name.
    fn from_str(text: &str) -> Result<Self, InvalidZone> {
        let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        match NodeName::from_str(&lower) {
            Ok(_) => Ok(Self(lower)),
            Err(_) => Err(InvalidZone(text.chars().take(MAX_SHOWN).collect())),
        }
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Zone {
    type Error = InvalidZone;

    fn try_from(text: String) -> Result<Self, InvalidZone> {
        text.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_name_with_or_without_its_last_dot() {
        for text in ["edge.internal", "Edge.Internal.", "edge.INTERNAL"] {
            assert_eq!(
                text.parse::<Zone>().unwrap().as_str(),
                "edge.internal",
                "{text}"
            );
        }
        for bad in [
            "",
            ".",
            "edge..internal",
            "edge internal",
            "edge.internal..",
            &"a.".repeat(200),
        ] {
            assert!(bad.parse::<Zone>().is_err(), "{bad:?}");
        }
    }
}
