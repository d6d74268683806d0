//! Passes the original destination from the client's socket to the accepted one. The connection's
//! addresses, ports and initial sequence number are the key.

use core::ptr::{addr_of, null_mut, read_volatile};

use aya_ebpf::bindings::{
    BPF_ANY, BPF_SK_STORAGE_GET_F_CREATE, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB,
    BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TIMEOUT_INIT, BPF_TCP_CLOSE,
    bpf_sock_ops,
};
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use culvert_redirector_common::{Addr, Counter, Endpoint, Role, SocketDst};

use crate::maps::{CONFIG, SOCKETS, TUPLES, count};
use crate::netns::is_accepted_elsewhere;
use crate::stack::{TupleSlot, tuple};

const AF_INET: u32 = 2;

#[sock_ops]
pub fn cv_sockops(ctx: SockOpsContext) -> u32 {
    handle(&ctx, is_accepted_elsewhere)
}

/// For kernels without `bpf_get_netns_cookie` in these programs, which are those before 5.15. A
/// constant that disables the call is not enough, as in [`crate::connect::cv_connect4_old`].
#[sock_ops]
pub fn cv_sockops_old(ctx: SockOpsContext) -> u32 {
    handle(&ctx, |_| false)
}

/// `is_elsewhere` is asked about accepted sockets only.
#[inline(always)]
fn handle(ctx: &SockOpsContext, is_elsewhere: impl FnOnce(&SockOpsContext) -> bool) -> u32 {
    // SAFETY: the kernel passes a valid context.
    match unsafe { read_volatile(addr_of!((*ctx.ops).op)) } {
        BPF_SOCK_OPS_TIMEOUT_INIT => before_syn(ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => accepted(ctx, is_elsewhere),
        BPF_SOCK_OPS_STATE_CB => client_changed(ctx),
        _ => {}
    }
    1
}

/// The client's socket has its source address, port and initial sequence number, and no packet has
/// left yet. `tcp_connect_init()` asks for the timeout of the SYN in every version of the kernel,
/// right after it has set `snd_nxt`, which `BPF_SOCK_OPS_TCP_CONNECT_CB` precedes. The answer
/// stays what another program or the kernel says.
#[inline(always)]
fn before_syn(ctx: &SockOpsContext) {
    let Some(stored) = steered(ctx) else {
        return;
    };
    // SAFETY: the kernel passes a valid context.
    let flags = unsafe { read_volatile(addr_of!((*ctx.ops).bpf_sock_ops_cb_flags)) };
    // Fails only on a kernel that does not know the flag. There, a failed connection's tuple stays
    // until it is overwritten.
    let _unknown = ctx.set_cb_flags((flags | BPF_SOCK_OPS_STATE_CB_FLAG) as i32);
    // SAFETY: as above.
    let isn = unsafe { read_volatile(addr_of!((*ctx.ops).snd_nxt)) };
    // If the tuple is lost, the proxy finds no original destination and resets the connection.
    let mut key = TupleSlot::uninit();
    if TUPLES
        .insert(
            tuple(&mut key, &Ends::read(ctx), isn),
            stored,
            u64::from(BPF_ANY),
        )
        .is_err()
    {
        count(Counter::TupleFull);
    }
}

/// Removes the tuple of a client whose handshake failed. Nothing was acknowledged to it, so
/// `snd_una` is its initial sequence number. After a handshake, the accepted socket has removed
/// the tuple.
#[inline(always)]
fn client_changed(ctx: &SockOpsContext) {
    // SAFETY: the kernel passes a valid context; in this call `args` are the old and the new state.
    let state = unsafe { read_volatile(addr_of!((*ctx.ops).__bindgen_anon_1.args[1])) };
    if state == BPF_TCP_CLOSE && steered(ctx).is_some() {
        // SAFETY: as above.
        let isn = unsafe { read_volatile(addr_of!((*ctx.ops).snd_una)) };
        let mut key = TupleSlot::uninit();
        let _absent = TUPLES.remove(tuple(&mut key, &Ends::read(ctx), isn));
    }
}

/// The handshake is done, and `accept()` has not returned yet. A connection to another port costs
/// only a look at the configuration. One in another network namespace is not the proxy's.
#[inline(always)]
fn accepted(ctx: &SockOpsContext, is_elsewhere: impl FnOnce(&SockOpsContext) -> bool) {
    // SAFETY: the kernel passes a valid context.
    let port = unsafe { read_volatile(addr_of!((*ctx.ops).local_port)) } as u16;
    let config = match CONFIG.get(0) {
        Some(config) if config.is_intercept_port(port.to_be()) => config,
        _ => return,
    };
    if is_elsewhere(ctx) {
        return;
    }
    let ends = Ends::read(ctx);
    if !config.is_intercept(&ends.local.addr, ends.local.port) {
        return;
    }
    // SAFETY: the kernel passes a valid context.
    let rcv_nxt = unsafe { read_volatile(addr_of!((*ctx.ops).rcv_nxt)) };
    // Other network namespaces of this kernel may have sockets with the same addresses and ports,
    // and older kernels do not say which is which. They do not know the client's initial sequence number, which the SYN brought.
    let isn = rcv_nxt.wrapping_sub(1);
    let mut key = TupleSlot::uninit();
    let tuple = tuple(&mut key, &ends.swapped(), isn);
    let Some(stored) = TUPLES.get_ptr_mut(tuple) else {
        count(Counter::Unknown);
        return;
    };
    // The helper copies the value at once, so the slot may be reused.
    match storage(ctx, stored, u64::from(BPF_SK_STORAGE_GET_F_CREATE)) {
        Some(kept) => {
            // SAFETY: the slot is the new socket's own, and `accept()` has not returned it yet.
            unsafe { (*kept).role = Role::Accepted as u8 };
            count(Counter::Accepted);
        }
        None => count(Counter::StorageFull),
    }
    // The next connection from the same source port must not get this destination. Another CPU may
    // have evicted the entry already.
    let _evicted = TUPLES.remove(tuple);
}

/// What the socket of a steered client has stored.
#[inline(always)]
fn steered<'a>(ctx: &SockOpsContext) -> Option<&'a SocketDst> {
    let slot = storage(ctx, null_mut(), 0)?;
    // SAFETY: the slot is the socket's own, and the socket is locked.
    let stored = unsafe { &*slot };
    stored.endpoint(Role::Client).map(|_| stored)
}

/// The socket's storage. If `flags` say so, it is created from `initial`.
#[inline(always)]
fn storage(ctx: &SockOpsContext, initial: *mut SocketDst, flags: u64) -> Option<*mut SocketDst> {
    // SAFETY: `sk` is in the context of this hook. The verifier requires the null check before any
    // use.
    let socket = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if socket.is_null() {
        return None;
    }
    // SAFETY: the map, the socket and `initial` are valid; the helper returns null or the socket's
    // own slot.
    let slot = unsafe {
        bpf_sk_storage_get(
            (&raw const SOCKETS).cast_mut().cast(),
            socket.cast(),
            initial.cast(),
            flags,
        )
    };
    if slot.is_null() {
        None
    } else {
        Some(slot.cast())
    }
}

/// Both ends of the context's socket.
pub struct Ends {
    pub local: Endpoint,
    pub remote: Endpoint,
}

impl Ends {
    /// The same ends from the peer's point of view.
    #[inline(always)]
    fn swapped(self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
        }
    }

    /// Reads every field once and before any branch. Otherwise LLVM merges reads, and the verifier
    /// rejects the merged ones.
    #[inline(always)]
    fn read(ctx: &SockOpsContext) -> Self {
        let ops: *const bpf_sock_ops = ctx.ops;
        // SAFETY: the kernel passes a valid context, and all of these fields may be read.
        unsafe {
            let family = read_volatile(addr_of!((*ops).family));
            let local4 = read_volatile(addr_of!((*ops).local_ip4));
            let remote4 = read_volatile(addr_of!((*ops).remote_ip4));
            let local6 = [
                read_volatile(addr_of!((*ops).local_ip6[0])),
                read_volatile(addr_of!((*ops).local_ip6[1])),
                read_volatile(addr_of!((*ops).local_ip6[2])),
                read_volatile(addr_of!((*ops).local_ip6[3])),
            ];
            let remote6 = [
                read_volatile(addr_of!((*ops).remote_ip6[0])),
                read_volatile(addr_of!((*ops).remote_ip6[1])),
                read_volatile(addr_of!((*ops).remote_ip6[2])),
                read_volatile(addr_of!((*ops).remote_ip6[3])),
            ];
            // The kernel gives the local port in host order, and the remote port in network order
            // in the upper half.
            let local_port = (read_volatile(addr_of!((*ops).local_port)) as u16).to_be();
            let remote_port =
                ((u32::from_be(read_volatile(addr_of!((*ops).remote_port)))) as u16).to_be();
            let (local, remote) = if family == AF_INET {
                (Addr::from_v4_word(local4), Addr::from_v4_word(remote4))
            } else {
                (Addr::from_words(local6), Addr::from_words(remote6))
            };
            Self {
                local: Endpoint {
                    addr: local,
                    port: local_port,
                },
                remote: Endpoint {
                    addr: remote,
                    port: remote_port,
                },
            }
        }
    }
}
