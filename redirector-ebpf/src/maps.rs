//! The maps, with BTF so that `bpftool map dump` shows named fields.

use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, SkStorage};
use aya_ebpf::macros::btf_map;
use culvert_redirector_common::names::{COUNTERS_MAX, DESTINATIONS_MAX, TUPLES_MAX};
use culvert_redirector_common::{
    Config, Counter, DestinationKey, DestinationValue, SocketDst, Tuple,
};

/// One entry; written by the redirector.
#[btf_map(name = "cv_config")]
pub static CONFIG: Array<Config, 1> = Array::new();

/// Written by the redirector.
#[btf_map(name = "cv_destinations")]
pub static DESTINATIONS: HashMap<DestinationKey, DestinationValue, DESTINATIONS_MAX> =
    HashMap::new();

/// Entries live for a handshake; the least recently used make room when many handshakes never end.
#[btf_map(name = "cv_tuples")]
pub static TUPLES: LruHashMap<Tuple, SocketDst, TUPLES_MAX> = LruHashMap::new();

/// Lives and dies with the sockets.
#[btf_map(name = "cv_sockets")]
pub static SOCKETS: SkStorage<SocketDst> = SkStorage::new();

/// By [`Counter`].
#[btf_map(name = "cv_counters")]
pub static COUNTERS: PerCpuArray<u64, COUNTERS_MAX> = PerCpuArray::new();

/// Adds one on this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the slot is this CPU's own and lives as long as the map. An interrupt in between
        // loses a count at most.
        unsafe { *slot += 1 };
    }
}
