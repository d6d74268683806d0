//! The kernel programs, from user space: the only part of the redirector that uses aya and the
//! `bpf()` system call.

mod bypass;
mod cgroup;
mod cilium;
mod compatible;
mod hooks;
mod lockdown;
mod mechanism;
mod memory;
mod metrics;
mod object;
mod pins;
mod proof;
mod reservation;
#[allow(
    unsafe_code,
    reason = "the only part that speaks to the kernel without aya"
)]
mod sys;
mod tables;
mod variants;

pub(crate) use bypass::bypassing_data_plane;
pub(crate) use cgroup::{CgroupError, find as find_cgroup, leaves_pods_out};
pub(crate) use cilium::{Cilium, CiliumCompatibility};
pub(crate) use hooks::{Hook, HookError, Hooks, Surroundings};
pub(crate) use mechanism::{EbpfMechanism, MechanismError, OtherSteering, now_ns};
pub(crate) use metrics::register as register_metrics;
pub(crate) use pins::{PinError, Pins, cgroup_id};
pub(crate) use proof::{Proof, ProofError, prove};
pub(crate) use reservation::read_reserved;
pub(crate) use tables::{KernelConfig, MapChanges, Tables, TablesError, kernel_config};
pub(crate) use variants::{reach_of_host, refusal_of_this_kernel, usual_scope};
