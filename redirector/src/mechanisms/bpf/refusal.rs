//! The error of a refused `connect()`. On older kernels, connect programs cannot choose it.

use aya::programs::{ProgramError, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use culvert_api::installed::Refusal;
use culvert_redirector_common::names::{CONNECT4, CONNECT4_OLD, CONNECT6, CONNECT6_OLD};

/// Tests whether the kernel loads a program that calls `bpf_set_retval` at `connect()`. The
/// kernel's version does not show this, because distributions backport the helper.
pub(crate) fn refusal_of_this_kernel() -> Result<Refusal, ProgramError> {
    let supported =
        is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)?;
    Ok(if supported {
        Refusal::HostUnreachable
    } else {
        Refusal::NotPermitted
    })
}

/// The name of the program in the object that is attached as `program`.
pub(super) fn variant(refusal: Refusal, program: &'static str) -> &'static str {
    match (refusal, program) {
        (Refusal::NotPermitted, CONNECT4) => CONNECT4_OLD,
        (Refusal::NotPermitted, CONNECT6) => CONNECT6_OLD,
        _ => program,
    }
}
