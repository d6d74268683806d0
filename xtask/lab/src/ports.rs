//! Free ports on this machine's loopback, for programs of tests that run side by side.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// Below the range of client ports: the kernel could give such a port to a client between the check
/// and the program's start.
const FIRST: u32 = 15_000;
const COUNT: u32 = 15_000;

/// A port without a listener that this process has not returned before.
///
/// # Errors
/// There is no such port.
pub fn free() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test runs side by side start at different offsets.
    let offset = std::process::id().wrapping_mul(101);
    (0..COUNT)
        .map(|_| offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|number| u16::try_from(FIRST + number).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no port of loopback is free")
}

/// Such a port, with the loopback address.
///
/// # Errors
/// As [`free`].
pub fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free()?).into())
}
