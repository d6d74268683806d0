//! The maps, with BTF so that `bpftool map dump` shows named fields.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, SkStorage};
use aya_ebpf::macros::btf_map;
use culvert_redirector_common::names::{COUNTERS_MAX, DESTINATIONS_MAX, TUPLES_MAX};
use culvert_redirector_common::{
    Config, Counter, DestinationKey, DestinationValue, ReservedPorts, SocketDst, Tuple,
};

/// Has one entry, which the redirector writes.
#[btf_map(name = "cv_config")]
pub static CONFIG: Array<Config, 1> = Array::new();

/// Has one entry, which the redirector writes.
#[btf_map(name = "cv_reserved")]
pub static RESERVED: Array<ReservedPorts, 1> = Array::new();

/// Written by the redirector.
#[btf_map(name = "cv_destinations")]
pub static DESTINATIONS: HashMap<
    DestinationKey,
    DestinationValue,
    DESTINATIONS_MAX,
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();

/// Has an entry during each handshake. If many handshakes never end, the least recently used
/// entries are evicted.
#[btf_map(name = "cv_tuples")]
pub static TUPLES: LruHashMap<Tuple, SocketDst, TUPLES_MAX> = LruHashMap::new();

/// An entry lives as long as its socket.
#[btf_map(name = "cv_sockets")]
pub static SOCKETS: SkStorage<SocketDst> = SkStorage::new();

/// Indexed by [`Counter`].
#[btf_map(name = "cv_counters")]
pub static COUNTERS: PerCpuArray<u64, COUNTERS_MAX> = PerCpuArray::new();

/// Adds one to the counter on this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the slot belongs to this CPU and lives as long as the map. An interrupt in
        // between can lose one count.
        unsafe { *slot += 1 };
    }
}
