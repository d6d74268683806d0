//! Which error a refused `connect()` gets: the kernel's choice before it let connect programs
//! choose.

use std::fmt;

use aya::programs::{ProgramError, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use culvert_redirector_common::names::{CONNECT4, CONNECT4_OLD, CONNECT6, CONNECT6_OLD};
use serde::Serialize;

/// The error of a connect that the hooks refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Refusal {
    /// "No route to host", as routers say it.
    #[serde(rename = "EHOSTUNREACH")]
    HostUnreachable,
    /// "Operation not permitted": this kernel has no `bpf_set_retval` for connect programs.
    #[serde(rename = "EPERM")]
    NotPermitted,
}

impl Refusal {
    /// Has the kernel load a program that calls `bpf_set_retval` at `connect()`, which no version
    /// number tells: kernels of distributions have it earlier.
    pub(crate) fn of_this_kernel() -> Result<Self, ProgramError> {
        let supported =
            is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)?;
        Ok(if supported {
            Self::HostUnreachable
        } else {
            Self::NotPermitted
        })
    }

    /// The program of the object that is attached as `program`.
    pub(super) fn variant(self, program: &'static str) -> &'static str {
        match (self, program) {
            (Self::NotPermitted, CONNECT4) => CONNECT4_OLD,
            (Self::NotPermitted, CONNECT6) => CONNECT6_OLD,
            _ => program,
        }
    }

    /// As errno is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HostUnreachable => "EHOSTUNREACH",
            Self::NotPermitted => "EPERM",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
