//! Programs for `getpeername()` of a steered client: they return what it dialled, not the proxy.

use core::ptr::{addr_of_mut, write_volatile};

use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use culvert_redirector_common::{Endpoint, Role};

use crate::maps::SOCKETS;

/// The only return value of these hooks: they never make `getpeername()` fail.
const ALLOW: i32 = 1;

#[cgroup_sock_addr(getpeername4)]
pub fn cv_peer4(ctx: SockAddrContext) -> i32 {
    if let Some(dialled) = dialled(&ctx) {
        // SAFETY: the kernel passes a valid context; both fields are writable in this hook.
        unsafe {
            write_volatile(
                addr_of_mut!((*ctx.sock_addr).user_ip4),
                dialled.addr.as_words()[3],
            );
            write_volatile(
                addr_of_mut!((*ctx.sock_addr).user_port),
                u32::from(dialled.port),
            );
        }
    }
    ALLOW
}

#[cgroup_sock_addr(getpeername6)]
pub fn cv_peer6(ctx: SockAddrContext) -> i32 {
    if let Some(dialled) = dialled(&ctx) {
        let words = dialled.addr.as_words();
        // SAFETY: the kernel passes a valid context; all of these fields are writable in this hook.
        unsafe {
            write_volatile(addr_of_mut!((*ctx.sock_addr).user_ip6[0]), words[0]);
            write_volatile(addr_of_mut!((*ctx.sock_addr).user_ip6[1]), words[1]);
            write_volatile(addr_of_mut!((*ctx.sock_addr).user_ip6[2]), words[2]);
            write_volatile(addr_of_mut!((*ctx.sock_addr).user_ip6[3]), words[3]);
            write_volatile(
                addr_of_mut!((*ctx.sock_addr).user_port),
                u32::from(dialled.port),
            );
        }
    }
    ALLOW
}

/// What this socket dialled; `None` for a socket that the proxy accepted, whose peer is the real
/// client.
#[inline(always)]
fn dialled(ctx: &SockAddrContext) -> Option<Endpoint> {
    // SAFETY: `sk` is in the context of this hook. The verifier requires the null check before any
    // use.
    if unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk }.is_null() {
        return None;
    }
    // SAFETY: the helper returns null or the socket's own slot, which lives as long as the socket.
    let slot = unsafe { SOCKETS.get_ptr_mut(ctx) };
    // SAFETY: null is checked by `as_ref`.
    unsafe { slot.as_ref() }.and_then(|stored| stored.endpoint(Role::Client))
}
