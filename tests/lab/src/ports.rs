//! Free ports of this machine, for programs of tests that run side by side.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

/// Below the range of client ports: the kernel could give such a port to a client between the check
/// and the program's start.
const FIRST: u32 = 15_000;
const COUNT: u32 = 15_000;

/// A port without a listener that this process has not returned before.
///
/// # Errors
/// There is no such port.
pub fn free() -> Result<u16> {
    free_in_row(1)
}

/// The first of this many ports in a row without a listener that this process has not returned
/// before.
///
/// # Errors
/// There is no such row.
pub fn free_in_row(length: u16) -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test runs side by side start at different offsets.
    let offset = std::process::id().wrapping_mul(101);
    for _ in 0..COUNT {
        let next = NEXT.fetch_add(length.into(), Ordering::Relaxed);
        let first = FIRST + offset.wrapping_add(next) % COUNT;
        if let Ok(first) = u16::try_from(first)
            && (first..first + length).all(is_free)
        {
            return Ok(first);
        }
    }
    bail!("no port of this machine is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// Such a port, with the loopback address.
///
/// # Errors
/// As [`free`].
pub fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free()?).into())
}
