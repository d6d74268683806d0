//! The whole chain with the real programs on a real kernel: hook, proxy, tunnel, agent, backend,
//! and back.
//!
//! Needs root; without it every test is *skipped*, or fails under `REQUIRE_PRIVILEGED=1`. `cargo
//! xtask test` runs them one at a time: they share the lab's name.

mod admin;
mod bytes;
mod certificates;
mod chaos;
mod check;
mod churn;
mod compared;
mod connect;
mod dials;
mod directory;
mod documents;
mod grpc;
mod hostile;
mod life;
mod nodes;
mod pki;
mod pressure;
mod reach;
mod resolvers;
mod secrets;
mod stalls;
mod steering;
mod swarm;
mod troubleshooting;
mod trust;
mod upgrade;
mod world;
