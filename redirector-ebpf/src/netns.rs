//! Limits the connect hooks to one network namespace.

use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_get_netns_cookie;
use aya_ebpf::programs::SockAddrContext;

/// The cookie of the only network namespace whose connections are steered; 0 if all are. It is set
/// when the programs are loaded. Otherwise the verifier would check the helper call, which not all
/// kernels have.
#[unsafe(no_mangle)]
static ONLY_NETNS: Global<u64> = Global::new(0);

/// Whether the socket is in another network namespace, as pods are.
#[inline(always)]
pub fn is_foreign(ctx: &SockAddrContext) -> bool {
    let only = ONLY_NETNS.load();
    // SAFETY: the helper takes the context of this hook and has no effect.
    only != 0 && unsafe { bpf_get_netns_cookie(ctx.sock_addr.cast()) } != only
}
