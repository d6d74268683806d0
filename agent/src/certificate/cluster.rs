//! What an agent in a Kubernetes cluster gets its certificate with.

pub(crate) mod account_token;
pub(crate) mod config;
