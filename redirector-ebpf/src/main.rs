//! The kernel programs. They read the context, ask [`culvert_redirector_common::decide`], and carry
//! out its verdict.
//!
//! A connection's original destination travels: `cv_connect*` stores it on the client's socket;
//! `cv_sockops` copies it to `cv_tuples` before the SYN leaves, and from there to the accepted
//! socket before the proxy sees it; `cv_peer*` shows it to the client.
#![no_std]
#![no_main]

mod connect;
mod maps;
mod netns;
mod peer;
mod sockops;
mod stack;

/// The kernel asks every program for its licence. None of the helpers used here is for the GPL
/// alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 11] = *b"Apache-2.0\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses a program in which this can be reached.
    loop {}
}
