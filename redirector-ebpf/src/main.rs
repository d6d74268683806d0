//! The kernel programs. They read the context, call [`culvert_redirector_common::decide`], and
//! carry out its verdict.
//!
//! The original destination of a connection takes this path: `cv_connect*` stores it for the
//! client's socket. `cv_sockops` copies it to `cv_tuples` before the SYN leaves, and from there to
//! the accepted socket before the proxy sees it. `cv_peer*` returns it to the client.
//! `cv_bind*` keeps the ports of the proxy for it.
#![no_std]
#![no_main]

mod bind;
mod connect;
mod maps;
mod netns;
mod peer;
mod sockops;
mod stack;

/// The kernel requires a licence of every program. None of the helpers used here is restricted to
/// the GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 11] = *b"Apache-2.0\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier rejects a program that can reach this.
    loop {}
}
