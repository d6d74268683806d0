//! The function that the fuzz target of labels (`fuzz/`) calls.

use std::net::SocketAddr;

/// The destinations behind a node that a label's value names, and the problems of those that are
/// left out.
#[must_use]
pub fn behind_label(value: &str) -> (Vec<SocketAddr>, Vec<String>) {
    let (destinations, problems) = crate::nodes::behind_label(value);
    (destinations.into_iter().collect(), problems)
}
