//! Whose connects are looked at: those of one network namespace, or all.

use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_get_netns_cookie;
use aya_ebpf::programs::SockAddrContext;

/// The cookie of the network namespace whose processes alone are steered; 0: all are. Set when the
/// programs are loaded, so that the verifier never sees the helper where it is not wanted: not all
/// kernels have it.
#[unsafe(no_mangle)]
static ONLY_NETNS: Global<u64> = Global::new(0);

/// Whether the socket's connects are left alone: pods' under `--hooks host`.
#[inline(always)]
pub fn is_foreign(ctx: &SockAddrContext) -> bool {
    let only = ONLY_NETNS.load();
    // SAFETY: the helper takes the context of this hook and has no effect.
    only != 0 && unsafe { bpf_get_netns_cookie(ctx.sock_addr.cast()) } != only
}
