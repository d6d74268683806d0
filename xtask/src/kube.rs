//! Kubernetes for tests: real programs, never a fake.

pub mod apiserver;
