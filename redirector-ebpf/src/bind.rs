//! Programs for `bind()`: they keep the intercept ports for the proxy.

use core::ptr::{addr_of, read_volatile};

use aya_ebpf::helpers::bpf_get_current_uid_gid;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use culvert_redirector_common::{Bind, BindVerdict, Counter};

use crate::maps::{RESERVED, count};
use crate::netns::is_beside_proxy;

/// The call continues.
const ALLOW: i32 = 1;
/// The call fails with `EPERM`.
const DENY: i32 = 0;

#[cgroup_sock_addr(bind4)]
pub fn cv_bind4(ctx: SockAddrContext) -> i32 {
    bind(&ctx)
}

/// Also for IPv4-mapped addresses, which never reach the IPv4 hook.
#[cgroup_sock_addr(bind6)]
pub fn cv_bind6(ctx: SockAddrContext) -> i32 {
    bind(&ctx)
}

#[inline(always)]
fn bind(ctx: &SockAddrContext) -> i32 {
    let Some(reserved) = RESERVED.get(0) else {
        return ALLOW;
    };
    let address = ctx.sock_addr;
    // SAFETY: the kernel passes a valid context. Each field is read once, at its own offset, as the
    // verifier requires.
    let (protocol, port) = unsafe {
        (
            read_volatile(addr_of!((*address).protocol)),
            read_volatile(addr_of!((*address).user_port)),
        )
    };
    let bind = Bind {
        port: port as u16,
        protocol,
        // The lower half is the user, the upper half the group.
        user: bpf_get_current_uid_gid() as u32,
        is_of_host: is_beside_proxy(ctx),
    };
    match reserved.decide(&bind) {
        BindVerdict::Pass => ALLOW,
        BindVerdict::Refuse => {
            count(Counter::BindRefused);
            DENY
        }
    }
}
