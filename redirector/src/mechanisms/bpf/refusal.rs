//! Which error a refused `connect()` gets: the kernel's choice before it let connect programs
//! choose.

use aya::programs::{ProgramError, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use culvert_api::installed::Refusal;
use culvert_redirector_common::names::{CONNECT4, CONNECT4_OLD, CONNECT6, CONNECT6_OLD};

/// Has the kernel load a program that calls `bpf_set_retval` at `connect()`. Its version number
/// does not tell: distributions' kernels have it earlier.
pub(crate) fn refusal_of_this_kernel() -> Result<Refusal, ProgramError> {
    let supported =
        is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)?;
    Ok(if supported {
        Refusal::HostUnreachable
    } else {
        Refusal::NotPermitted
    })
}

/// The program of the object that is attached as `program`.
pub(super) fn variant(refusal: Refusal, program: &'static str) -> &'static str {
    match (refusal, program) {
        (Refusal::NotPermitted, CONNECT4) => CONNECT4_OLD,
        (Refusal::NotPermitted, CONNECT6) => CONNECT6_OLD,
        _ => program,
    }
}
