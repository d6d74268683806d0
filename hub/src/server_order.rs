//! The order in which the API servers of a cluster are asked.

use clap::ValueEnum;

/// Which server a new connection goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerOrder {
    /// The first one that answers.
    #[default]
    Priority,
    /// One after the other.
    RoundRobin,
}
