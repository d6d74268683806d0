//! What the demo, the tests, the bench and the end-to-end suite share: hosts made of namespaces
//! ([`Lab`]), an API server, background programs, and waits for conditions.
#![forbid(unsafe_code)]

pub mod apiserver;
pub mod browser;
pub mod cgroup;
pub mod cloud_host;
pub mod culvert;
pub mod cut;
pub mod dns;
pub mod failures;
pub mod flags_page;
pub mod go_program;
pub mod host;
pub mod hub;
pub mod inside;
pub mod interrupt;
pub mod kubernetes;
mod lab;
mod line_process;
mod log_line;
pub mod monitoring;
mod name;
mod network;
pub mod page;
pub mod pki;
pub mod ports;
pub mod probe;
pub mod process;
pub mod progress;
pub mod random;
pub mod self_signed;
pub mod silence;
pub mod site;
pub mod skewed_clock;
pub mod skip;
pub mod sshd;
pub mod stacks;
pub mod unpacked;
pub mod wait;
pub mod workspace;

pub use lab::Lab;
pub use line_process::LineProcess;
pub use log_line::LogLine;
pub use name::LabName;
