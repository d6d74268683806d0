//! How current a cluster's state is.

use crate::clock::UnixTime;

/// How current the directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The API server confirms it now.
    Live,
    /// It is the last state of the cluster, or there is none yet.
    Stale {
        /// When the API server last confirmed it; `None`: never.
        since: Option<UnixTime>,
        /// The reason why the API server does not confirm it now.
        cause: String,
    },
}

impl Freshness {
    /// A remark for operators.
    pub fn remark(&self) -> Option<String> {
        match self {
            Self::Live => None,
            Self::Stale { since: None, cause } => {
                Some(format!("no node of the cluster is known yet: {cause}"))
            }
            Self::Stale {
                since: Some(since),
                cause,
            } => {
                let age = UnixTime::now().since(*since).as_secs();
                Some(format!(
                    "the API server last confirmed these nodes {age} s ago, at {since}: {cause}"
                ))
            }
        }
    }

    /// The time since the last confirmation; infinite if there was none.
    pub fn age_seconds(&self) -> f64 {
        match self {
            Self::Live => 0.0,
            Self::Stale {
                since: Some(since), ..
            } => UnixTime::now().since(*since).as_secs_f64(),
            Self::Stale { since: None, .. } => f64::INFINITY,
        }
    }
}
