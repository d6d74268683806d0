//! The whole chain with the real programs on a real kernel: hook, proxy, tunnel, agent, backend,
//! and back.
//!
//! Needs root; without it every test is *skipped*, or fails under `REQUIRE_PRIVILEGED=1`. `cargo
//! xtask test` runs them one at a time: they share the lab's name.

#[path = "chain/admin.rs"]
mod admin;
#[path = "chain/bytes.rs"]
mod bytes;
#[path = "chain/certificates.rs"]
mod certificates;
#[path = "chain/chaos.rs"]
mod chaos;
#[path = "chain/check.rs"]
mod check;
#[path = "chain/churn.rs"]
mod churn;
#[path = "chain/compared.rs"]
mod compared;
#[path = "chain/connect.rs"]
mod connect;
#[path = "chain/dials.rs"]
mod dials;
#[path = "chain/directory.rs"]
mod directory;
#[path = "chain/dns.rs"]
mod dns;
#[path = "chain/documents.rs"]
mod documents;
#[path = "chain/grpc.rs"]
mod grpc;
#[path = "chain/hostile.rs"]
mod hostile;
#[path = "chain/life.rs"]
mod life;
#[path = "chain/nodes.rs"]
mod nodes;
#[path = "chain/pki.rs"]
mod pki;
#[path = "chain/pressure.rs"]
mod pressure;
#[path = "chain/reach.rs"]
mod reach;
#[path = "chain/resolvers.rs"]
mod resolvers;
#[path = "chain/secrets.rs"]
mod secrets;
#[path = "chain/stalls.rs"]
mod stalls;
#[path = "chain/steering.rs"]
mod steering;
#[path = "chain/swarm.rs"]
mod swarm;
#[path = "chain/troubleshooting.rs"]
mod troubleshooting;
#[path = "chain/trust.rs"]
mod trust;
#[path = "chain/upgrade.rs"]
mod upgrade;
#[path = "chain/world.rs"]
mod world;
