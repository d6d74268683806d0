//! The network namespace of a socket: connect hooks may be limited to the host's, its loopback
//! addresses are not those of others, and the proxy accepts connections there alone.

use core::ptr::null_mut;

use aya_ebpf::helpers::bpf_get_netns_cookie;
use aya_ebpf::programs::{SockAddrContext, SockOpsContext};
use aya_ebpf::{EbpfContext, Global};

/// The cookie of the only network namespace whose connections are steered; 0 if all are. It is set
/// when the programs are loaded. Otherwise the verifier would check the helper call, which not all
/// kernels have.
#[unsafe(no_mangle)]
static ONLY_NETNS: Global<u64> = Global::new(0);

/// The cookie of the host's network namespace, in which the proxy listens; 0 if the kernel does not
/// say it. It is set when the programs are loaded.
#[unsafe(no_mangle)]
static HOST_NETNS: Global<u64> = Global::new(0);

/// Whether the socket is in a network namespace whose connections are not steered, as pods may be.
#[inline(always)]
pub fn is_foreign(ctx: &SockAddrContext) -> bool {
    let only = ONLY_NETNS.load();
    only != 0 && cookie(ctx) != only
}

/// Whether the socket is known to be in the host's network namespace.
#[inline(always)]
pub fn is_of_host(ctx: &SockAddrContext) -> bool {
    let host = HOST_NETNS.load();
    host != 0 && cookie(ctx) == host
}

/// Whether the socket is in the network namespace in which the proxy listens. Where the kernel does
/// not say which that is (before Linux 5.14), the initial one is taken for it.
#[inline(always)]
pub fn is_beside_proxy(ctx: &SockAddrContext) -> bool {
    let host = HOST_NETNS.load();
    if host != 0 {
        return cookie(ctx) == host;
    }
    // SAFETY: without a context the helper returns the cookie of the initial network namespace.
    cookie(ctx) == unsafe { bpf_get_netns_cookie(null_mut()) }
}

/// Whether the accepted socket is known to be in another network namespace than the host's.
#[inline(always)]
pub fn is_accepted_elsewhere(ctx: &SockOpsContext) -> bool {
    let host = HOST_NETNS.load();
    host != 0 && cookie(ctx) != host
}

#[inline(always)]
fn cookie(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: the helper takes the context of these hooks and has no effect.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}
