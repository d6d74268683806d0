//! Programs for `connect()` of TCP sockets.

use core::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

use aya_ebpf::bindings::{bpf_sock, bpf_sock_addr};
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_set_retval};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use culvert_redirector_common::{
    Addr, Connect, Counter, Endpoint, SocketDst, SocketReach, Steer, Storage, Verdict, decide,
};

use crate::maps::{CONFIG, DESTINATIONS, SOCKETS, count};
use crate::netns::{is_foreign, is_of_host};
use crate::stack::{KeySlot, key};

/// The call continues; its address may have been rewritten.
const ALLOW: i32 = 1;
/// The call fails, with `EPERM` unless `bpf_set_retval` set another error.
const DENY: i32 = 0;
const SOCK_STREAM: u32 = 1;
const EHOSTUNREACH: i32 = 113;

#[cgroup_sock_addr(connect4)]
pub fn cv_connect4(ctx: SockAddrContext) -> i32 {
    connect4(&ctx, host_unreachable)
}

#[cgroup_sock_addr(connect6)]
pub fn cv_connect6(ctx: SockAddrContext) -> i32 {
    connect6(&ctx, host_unreachable)
}

/// For kernels without `bpf_set_retval` in these programs. A constant that disables the call in one
/// program is not enough: if the loader has no CAP_PERFMON, the verifier follows both branches
/// (speculative execution).
#[cgroup_sock_addr(connect4)]
pub fn cv_connect4_old(ctx: SockAddrContext) -> i32 {
    connect4(&ctx, || {})
}

/// See [`cv_connect4_old`].
#[cgroup_sock_addr(connect6)]
pub fn cv_connect6_old(ctx: SockAddrContext) -> i32 {
    connect6(&ctx, || {})
}

/// Makes the call fail with EHOSTUNREACH instead of `EPERM`.
#[inline(always)]
fn host_unreachable() {
    // SAFETY: sets the system call's result, nothing else.
    unsafe { bpf_set_retval(-EHOSTUNREACH) };
}

#[inline(always)]
fn connect4(ctx: &SockAddrContext, choose_error: impl FnOnce()) -> i32 {
    let address = ctx.sock_addr;
    // SAFETY: the kernel passes a valid context. Each field is read once, at its own offset, as the
    // verifier requires.
    let (kind, ip, port) = unsafe {
        (
            read_volatile(addr_of!((*address).type_)),
            read_volatile(addr_of!((*address).user_ip4)),
            read_volatile(addr_of!((*address).user_port)),
        )
    };
    if kind != SOCK_STREAM {
        return ALLOW;
    }
    let dst = Endpoint {
        addr: Addr::from_v4_word(ip),
        port: port as u16,
    };
    let rewrite = |to: Endpoint| {
        // SAFETY: as above; both fields are writable in this hook.
        unsafe {
            write_volatile(addr_of_mut!((*address).user_ip4), to.addr.as_words()[3]);
            write_volatile(addr_of_mut!((*address).user_port), u32::from(to.port));
        }
    };
    steer(ctx, dst, rewrite, choose_error)
}

#[inline(always)]
fn connect6(ctx: &SockAddrContext, choose_error: impl FnOnce()) -> i32 {
    let address = ctx.sock_addr;
    // SAFETY: the kernel passes a valid context. Each word is read once, at its own offset, as the
    // verifier requires.
    let (kind, words, port) = unsafe {
        (
            read_volatile(addr_of!((*address).type_)),
            [
                read_volatile(addr_of!((*address).user_ip6[0])),
                read_volatile(addr_of!((*address).user_ip6[1])),
                read_volatile(addr_of!((*address).user_ip6[2])),
                read_volatile(addr_of!((*address).user_ip6[3])),
            ],
            read_volatile(addr_of!((*address).user_port)),
        )
    };
    if kind != SOCK_STREAM {
        return ALLOW;
    }
    // A connect of an IPv6 socket to an IPv4-mapped address never reaches the IPv4 hook:
    // tcp_v6_connect() calls tcp_v4_connect() directly.
    let dst = Endpoint {
        addr: Addr::from_words(words),
        port: port as u16,
    };
    let rewrite = |to: Endpoint| {
        let words = to.addr.as_words();
        // SAFETY: as above; all of these are writable in this hook.
        unsafe {
            write_volatile(addr_of_mut!((*address).user_ip6[0]), words[0]);
            write_volatile(addr_of_mut!((*address).user_ip6[1]), words[1]);
            write_volatile(addr_of_mut!((*address).user_ip6[2]), words[2]);
            write_volatile(addr_of_mut!((*address).user_ip6[3]), words[3]);
            write_volatile(addr_of_mut!((*address).user_port), u32::from(to.port));
        }
    };
    steer(ctx, dst, rewrite, choose_error)
}

/// Decides, and carries out the verdict; `rewrite` writes the new address into the context. Each
/// arm does everything for its verdict: if LLVM merges code after the arms, it computes with
/// registers that the verifier treats as pointers.
#[inline(always)]
fn steer(
    ctx: &SockAddrContext,
    dst: Endpoint,
    rewrite: impl FnOnce(Endpoint),
    choose_error: impl FnOnce(),
) -> i32 {
    if is_foreign(ctx) {
        return ALLOW;
    }
    let Some(config) = CONFIG.get(0) else {
        return ALLOW;
    };
    // SAFETY: `sk` is in the context of this hook. The verifier requires the null check below
    // before any use.
    let socket: *mut bpf_sock = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
    if socket.is_null() {
        return ALLOW;
    }
    // SAFETY: not null, and `mark` may be read from a `bpf_sock` in this hook.
    let mark = unsafe { read_volatile(addr_of!((*socket).mark)) };
    let mut slot = KeySlot::uninit();
    let verdict = decide(
        config,
        &Connect {
            dst,
            mark,
            reach: reach(ctx, socket),
            has_source_port: has_source_port(socket),
        },
        // SAFETY: the value is copied out at once; the slot may be reused afterwards.
        |destination| unsafe { DESTINATIONS.get(key(&mut slot, destination)) }.copied(),
        // SAFETY: takes nothing and has no effect.
        || unsafe { bpf_ktime_get_ns() },
    );
    match verdict {
        Verdict::Pass(pass) => {
            if let Some(counter) = pass.counter() {
                count(counter);
            }
            if pass.storage() == Storage::Remove {
                // SAFETY: `socket` is a full socket of this context. Usually there is no storage;
                // that is not an error.
                let _absent = unsafe { SOCKETS.delete(socket) };
            }
            ALLOW
        }
        Verdict::Steer(Steer { to }) => {
            if !remember(ctx, dst) {
                return deny(Counter::StorageFull, choose_error);
            }
            rewrite(to);
            count(Counter::Steered);
            ALLOW
        }
        Verdict::Reject(reject) => deny(reject.counter(), choose_error),
    }
}

/// Where `socket`, which is not null, can be steered to. IPv6 sockets have an IPv4 source address
/// too.
#[inline(always)]
fn reach(ctx: &SockAddrContext, socket: *mut bpf_sock) -> SocketReach {
    if !is_of_host(ctx) {
        return SocketReach::Node;
    }
    // SAFETY: not null, and both may be read from a `bpf_sock` in this hook.
    let (interface, source4) = unsafe {
        (
            read_volatile(addr_of!((*socket).bound_dev_if)),
            read_volatile(addr_of!((*socket).src_ip4)),
        )
    };
    SocketReach::of_host_socket(interface, source4)
}

/// Whether `socket`, which is not null, is bound to a port, and to no interface: nftables changes
/// only where its packets go.
#[inline(always)]
fn has_source_port(socket: *mut bpf_sock) -> bool {
    // SAFETY: not null, and both may be read from a `bpf_sock` in this hook.
    let (port, interface) = unsafe {
        (
            read_volatile(addr_of!((*socket).src_port)),
            read_volatile(addr_of!((*socket).bound_dev_if)),
        )
    };
    port != 0 && interface == 0
}

/// Stores the client's destination for its socket, over the value of an earlier connect of the same
/// socket. Returns false if the kernel has no capacity for it.
#[inline(always)]
fn remember(ctx: &SockAddrContext, dst: Endpoint) -> bool {
    // SAFETY: the helper checks the socket and returns null or the socket's own slot, zeroed if it
    // is new.
    let slot = unsafe { SOCKETS.get_or_insert_ptr_mut(ctx, None) };
    if slot.is_null() {
        return false;
    }
    // SAFETY: not null, of the right size, and the socket is locked by `connect()`.
    unsafe { slot.write(SocketDst::client(dst)) };
    true
}

#[inline(always)]
fn deny(counter: Counter, choose_error: impl FnOnce()) -> i32 {
    count(counter);
    choose_error();
    DENY
}

/// Checks an offset that the hooks depend on.
const _: () = assert!(core::mem::offset_of!(bpf_sock_addr, user_port) == 24);
