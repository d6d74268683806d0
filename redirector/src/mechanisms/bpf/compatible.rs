//! Checks whether these programs can use a map that an earlier redirector pinned.

use aya::maps::MapInfo;
use culvert_redirector_common::names::{
    CONFIG_MAP, COUNTERS_MAP, COUNTERS_MAX, DESTINATIONS_MAP, DESTINATIONS_MAX, RESERVED_MAP,
    SOCKETS_MAP, TUPLES_MAP, TUPLES_MAX,
};
use culvert_redirector_common::{
    Config, DestinationKey, DestinationValue, ReservedPorts, SocketDst, Tuple,
};

/// Numbers of map types, from `enum bpf_map_type` of linux/bpf.h.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const LRU_HASH: u32 = 9;
const SK_STORAGE: u32 = 24;

/// The properties of a map that must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapShape {
    kind: u32,
    key_size: usize,
    value_size: usize,
    max_entries: usize,
}

impl MapShape {
    /// The shape that the programs need.
    pub(super) fn required(map: &str) -> Option<Self> {
        let index = size_of::<u32>();
        let shape = match map {
            CONFIG_MAP => Self::new(ARRAY, index, size_of::<Config>(), 1),
            RESERVED_MAP => Self::new(ARRAY, index, size_of::<ReservedPorts>(), 1),
            DESTINATIONS_MAP => Self::new(
                HASH,
                size_of::<DestinationKey>(),
                size_of::<DestinationValue>(),
                DESTINATIONS_MAX,
            ),
            TUPLES_MAP => Self::new(
                LRU_HASH,
                size_of::<Tuple>(),
                size_of::<SocketDst>(),
                TUPLES_MAX,
            ),
            SOCKETS_MAP => Self::new(SK_STORAGE, index, size_of::<SocketDst>(), 0),
            COUNTERS_MAP => Self::new(PERCPU_ARRAY, index, size_of::<u64>(), COUNTERS_MAX),
            _ => return None,
        };
        Some(shape)
    }

    /// The shape of an existing map.
    pub(super) fn found(info: &MapInfo) -> Self {
        // An unknown type is never one that the programs need.
        let kind = info.map_type().map_or(0, |kind| kind as u32);
        Self::new(
            kind,
            info.key_size() as usize,
            info.value_size() as usize,
            info.max_entries() as usize,
        )
    }

    fn new(kind: u32, key_size: usize, value_size: usize, max_entries: usize) -> Self {
        Self {
            kind,
            key_size,
            value_size,
            max_entries,
        }
    }
}

impl std::fmt::Display for MapShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            key_size,
            value_size,
            max_entries,
        } = self;
        write!(
            f,
            "type {kind}, key {key_size} B, value {value_size} B, {max_entries} entries"
        )
    }
}

#[cfg(test)]
mod tests {
    use culvert_redirector_common::names::MAPS;

    use super::*;

    #[test]
    fn every_map_has_a_wanted_shape() {
        for name in MAPS {
            assert!(MapShape::required(name).is_some(), "{name}");
        }
        assert_eq!(
            MapShape::required(DESTINATIONS_MAP).unwrap().to_string(),
            "type 1, key 20 B, value 4 B, 524288 entries"
        );
    }
}
