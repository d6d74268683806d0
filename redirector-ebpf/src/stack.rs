//! Keys on the program's stack, written eight bytes at a time.
//!
//! Without CAP_PERFMON, verifiers before Linux 6.8 reject a store of fewer bytes over a stack slot
//! whose value they know ("attempt to corrupt spilled pointer on stack"). The second half of a slot
//! that is written in smaller words is such a store.

use core::mem::MaybeUninit;
use core::ptr::write_volatile;

use culvert_redirector_common::{DestinationKey, Tuple};

use crate::sockops::Ends;

/// Space for a [`DestinationKey`].
pub type KeySlot = MaybeUninit<[u64; 3]>;
/// Space for a [`Tuple`].
pub type TupleSlot = MaybeUninit<[u64; 5]>;

/// Writes a key into its slot.
#[inline(always)]
pub fn key<'a>(slot: &'a mut KeySlot, key: &DestinationKey) -> &'a DestinationKey {
    let [a, b, c, d] = key.addr.as_words();
    let port = u64::from(key.port) | u64::from(key.zero) << 16;
    let first = slot.as_mut_ptr().cast::<u64>();
    // SAFETY: the slot has three words, of which the key takes the first 20 bytes, and they are
    // aligned for it.
    unsafe {
        write_volatile(first, pair(a, b));
        write_volatile(first.add(1), pair(c, d));
        write_volatile(first.add(2), port);
        &*first.cast()
    }
}

/// Writes a client's tuple into its slot.
#[inline(always)]
pub fn tuple<'a>(slot: &'a mut TupleSlot, client: &Ends, isn: u32) -> &'a Tuple {
    let ([a, b, c, d], [e, f, g, h]) =
        (client.local.addr.as_words(), client.remote.addr.as_words());
    let ports = u32::from(client.local.port) | u32::from(client.remote.port) << 16;
    let first = slot.as_mut_ptr().cast::<u64>();
    // SAFETY: the slot has the five words of the tuple, and they are aligned for it.
    unsafe {
        write_volatile(first, pair(a, b));
        write_volatile(first.add(1), pair(c, d));
        write_volatile(first.add(2), pair(e, f));
        write_volatile(first.add(3), pair(g, h));
        write_volatile(first.add(4), pair(ports, isn));
        &*first.cast()
    }
}

/// Joins two words as they are in memory: the target is little-endian.
#[inline(always)]
const fn pair(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}
