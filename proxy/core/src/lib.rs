//! What a proxy knows and keeps: its state directory, the directory of nodes and their VIPs, its
//! metrics, and the small things that several of its parts have to agree on. No part of a proxy that
//! speaks to clients, agents, peers or an API server is here.
#![forbid(unsafe_code)]

pub mod advertise;
pub mod clock;
pub mod daemon_set;
pub mod directory;
pub mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod instance;
pub mod listed_peer;
pub mod metrics;
pub mod reported;
pub mod selector;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
