//! The programs of the object that this kernel accepts: some have a variant for older kernels.

use aya::programs::{ProgramError, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use culvert_api::installed::{HookScope, Refusal};
use culvert_redirector_common::SocketReach;
use culvert_redirector_common::names::{
    CONNECT4, CONNECT4_OLD, CONNECT6, CONNECT6_OLD, SOCKOPS, SOCKOPS_OLD,
};

use super::sys::netns_cookie;

/// What the kernel can do in the programs. Its version does not show this, because distributions
/// backport helpers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variants {
    /// The error of a refused `connect()`.
    pub(super) refusal: Refusal,
    /// Whether the program for accepted sockets learns their network namespace: since Linux 5.15.
    accepted_show_netns: bool,
}

impl Variants {
    /// The variants for this kernel. If it cannot be asked, the reason shows when the programs are
    /// loaded.
    pub(super) fn of_this_kernel() -> Self {
        Self {
            refusal: refusal_of_this_kernel().unwrap_or(Refusal::HostUnreachable),
            accepted_show_netns: is_helper_supported(
                ProgramType::SockOps,
                BpfHelper::BPF_FUNC_get_netns_cookie,
            )
            .unwrap_or(true),
        }
    }

    /// The name of the program in the object that is attached as `program`.
    pub(super) fn name(self, program: &'static str) -> &'static str {
        match program {
            CONNECT4 if self.refusal == Refusal::NotPermitted => CONNECT4_OLD,
            CONNECT6 if self.refusal == Refusal::NotPermitted => CONNECT6_OLD,
            SOCKOPS if !self.accepted_show_netns => SOCKOPS_OLD,
            _ => program,
        }
    }
}

/// The scope of hooks beside nftables, which steers pods as well: the host alone, if this kernel lets
/// hooks know its namespace.
pub(crate) fn usual_scope() -> HookScope {
    if can_tell_namespaces() {
        HookScope::Host
    } else {
        HookScope::All
    }
}

/// Whether hooks can be limited to this network namespace: since Linux 5.14 the kernel says its
/// cookie.
fn can_tell_namespaces() -> bool {
    netns_cookie().is_ok()
}

/// The reach of a socket of the host that is bound to nothing.
pub(crate) fn reach_of_host() -> SocketReach {
    if can_tell_namespaces() {
        SocketReach::of_host_socket(0, 0)
    } else {
        SocketReach::Node
    }
}

/// Tests whether the kernel loads a program that calls `bpf_set_retval` at `connect()`.
pub(crate) fn refusal_of_this_kernel() -> Result<Refusal, ProgramError> {
    let supported =
        is_helper_supported(ProgramType::CgroupSockAddr, BpfHelper::BPF_FUNC_set_retval)?;
    Ok(if supported {
        Refusal::HostUnreachable
    } else {
        Refusal::NotPermitted
    })
}
