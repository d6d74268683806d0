//! Tests the whole chain with the real programs on a real kernel: hook, proxy, tunnel, agent,
//! backend, and back.
//!
//! Without root every test is *skipped*, or fails under `REQUIRE_PRIVILEGED=1`. Several run at
//! once, each in its own lab. Tests that need the whole machine use `world::alone`.

mod admin;
mod behind;
mod bytes;
mod certificates;
mod chaos;
mod check;
mod churn;
mod clocks;
mod clones;
mod cni;
mod command_lines;
mod completion;
mod connect;
mod connect_port;
mod culvert;
mod dashboard;
mod dials;
mod directory;
mod documented_commands;
mod documented_metrics;
mod documents;
mod extra_tunnels;
mod failures;
mod families;
mod firewalls;
mod five_machines;
mod followers;
mod forwards;
mod full_disk;
mod grpc;
mod handover;
mod hostile;
mod ipv6_only;
mod life;
mod monitoring;
mod moved_addresses;
mod moves;
mod mptcp;
mod name_requests;
mod names;
mod nodes;
mod operators;
mod partitions;
mod path_mtu;
mod peers;
mod pressure;
mod proxies;
mod reach;
mod resolvers;
mod rootless;
mod scale;
mod secrets;
mod silent_backends;
mod ssh;
mod stalls;
mod steering;
mod swarm;
mod taken_ports;
mod troubleshooting;
mod trust;
mod upgrade;
mod world;
