//! The pinned maps: configuration and destinations for the programs, and their counters.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use culvert_redirector_common::names::{CONFIG_MAP, COUNTERS_MAP, DESTINATIONS_MAP};
use culvert_redirector_common::{
    Addr, Config, Counter, DestinationKey, DestinationValue, MAX_INTERCEPT_PORTS, Prefix,
};

use super::Pins;
use crate::config::Intercept;
use crate::directory::Ranges;
use crate::plan::{Destination, Liveness};

/// The entry of the configuration map.
pub(crate) type KernelConfig = Config;

/// The maps that user space reads and writes.
pub(crate) struct Tables {
    config: Array<MapData, Config>,
    destinations: HashMap<MapData, DestinationKey, DestinationValue>,
    counters: PerCpuArray<MapData, u64>,
}

/// A map that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TablesError {
    #[error("open the pinned map {path}")]
    Open { path: PathBuf, source: MapError },
    #[error("read the map {map}")]
    Read { map: &'static str, source: MapError },
    #[error("write the map {map}")]
    Write { map: &'static str, source: MapError },
}

/// How many entries were written and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapChanges {
    pub(crate) written: usize,
    pub(crate) removed: usize,
}

impl Tables {
    /// Opens the maps.
    pub(crate) fn open(pins: &Pins) -> Result<Self, TablesError> {
        Ok(Self {
            config: open(pins, CONFIG_MAP)?,
            destinations: open(pins, DESTINATIONS_MAP)?,
            counters: open(pins, COUNTERS_MAP)?,
        })
    }

    /// The configuration as the programs see it.
    pub(crate) fn config(&self) -> Result<KernelConfig, TablesError> {
        self.config.get(&0, 0).map_err(|source| TablesError::Read {
            map: CONFIG_MAP,
            source,
        })
    }

    /// Replaces the configuration.
    pub(crate) fn set_config(&mut self, config: &KernelConfig) -> Result<(), TablesError> {
        self.config
            .set(0, config, 0)
            .map_err(|source| TablesError::Write {
                map: CONFIG_MAP,
                source,
            })
    }

    /// The entry that the programs find for a destination.
    pub(crate) fn destination(
        &self,
        key: &DestinationKey,
    ) -> Result<Option<DestinationValue>, TablesError> {
        match self.destinations.get(key, 0) {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(TablesError::Read {
                map: DESTINATIONS_MAP,
                source,
            }),
        }
    }

    /// All destinations.
    pub(crate) fn destinations(&self) -> Result<BTreeMap<Destination, Liveness>, TablesError> {
        self.destinations
            .iter()
            .map(|entry| {
                entry.map(|(key, value)| (Destination::of_key(&key), Liveness::of_value(value)))
            })
            .collect::<Result<_, _>>()
            .map_err(|source| TablesError::Read {
                map: DESTINATIONS_MAP,
                source,
            })
    }

    /// Changes the map from `before` to `after`, and writes only the differences.
    pub(crate) fn set_destinations(
        &mut self,
        before: &BTreeMap<Destination, Liveness>,
        after: &BTreeMap<Destination, Liveness>,
    ) -> Result<MapChanges, TablesError> {
        let mut changed = MapChanges::default();
        let write = |source| TablesError::Write {
            map: DESTINATIONS_MAP,
            source,
        };
        for destination in before
            .keys()
            .filter(|destination| !after.contains_key(destination))
        {
            match self.destinations.remove(&destination.key()) {
                Ok(()) | Err(MapError::KeyNotFound) => changed.removed += 1,
                Err(source) => return Err(write(source)),
            }
        }
        for (destination, liveness) in after {
            if before.get(destination) != Some(liveness) {
                self.destinations
                    .insert(destination.key(), liveness.value(), 0)
                    .map_err(write)?;
                changed.written += 1;
            }
        }
        Ok(changed)
    }

    /// The programs' counters, summed over all CPUs.
    pub(crate) fn counts(&self) -> Result<Vec<(Counter, u64)>, TablesError> {
        let sum = |counter: Counter| {
            let values = self.counters.get(&(counter as u32), 0);
            let values = values.map_err(|source| TablesError::Read {
                map: COUNTERS_MAP,
                source,
            })?;
            Ok((counter, values.iter().sum()))
        };
        Counter::ALL.into_iter().map(sum).collect()
    }

    /// How many connects were steered, and how many of these connections the proxy's sockets took.
    pub(crate) fn steered(&self) -> Result<[u64; 2], TablesError> {
        let mut steered = [0; 2];
        for (counter, count) in self.counts()? {
            match counter {
                Counter::Steered => steered[0] = count,
                Counter::Accepted => steered[1] = count,
                Counter::Unmatched
                | Counter::Exempt
                | Counter::Offline
                | Counter::NoIntercept
                | Counter::StorageFull
                | Counter::TupleFull
                | Counter::Unknown => {}
            }
        }
        Ok(steered)
    }
}

/// The configuration for the programs. It has no lease: the offline flags are trusted only while
/// the directory is live.
pub(crate) fn kernel_config(intercept: &Intercept, ranges: Ranges) -> KernelConfig {
    let mut ports = [0; MAX_INTERCEPT_PORTS];
    let hook_ports = intercept.hook_ports();
    for (slot, port) in ports.iter_mut().zip(hook_ports) {
        *slot = port.to_be();
    }
    let prefix4 = |range: ipnet::Ipv4Net| Prefix::new(range.network().into(), range.prefix_len());
    let prefix6 = |range: ipnet::Ipv6Net| Prefix::new(range.network().into(), range.prefix_len());
    Config {
        offline_lease_ns: 0,
        mark: intercept.mark,
        mark_mask: intercept.mark,
        port_count: u16::try_from(hook_ports.len().min(MAX_INTERCEPT_PORTS)).unwrap_or_default(),
        ports,
        intercept4: intercept.node.v4.map_or(Addr::NONE, Addr::from),
        intercept6: intercept
            .node
            .v6
            .map_or(Addr::NONE, |v6| Addr::from(std::net::IpAddr::V6(v6))),
        vip4: ranges.vip4.map_or(Prefix::NONE, prefix4),
        vip6: ranges.vip6.map_or(Prefix::NONE, prefix6),
        ..Config::default()
    }
}

/// Opens a pinned map as one of aya's typed maps.
fn open<T>(pins: &Pins, name: &str) -> Result<T, TablesError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let path = pins.map(name);
    MapData::from_pin(&path)
        .and_then(Map::from_map_data)
        .and_then(T::try_from)
        .map_err(|source| TablesError::Open { path, source })
}

/// aya copies these types to and from the kernel as plain bytes.
const fn assert_pod<T: Pod>() {}
const _: () = (
    assert_pod::<Config>(),
    assert_pod::<DestinationKey>(),
    assert_pod::<DestinationValue>(),
)
    .2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeIps;
    use crate::directory::examples;

    #[test]
    fn the_programs_are_told_addresses_ports_mark_and_ranges() {
        let node = NodeIps {
            v4: Some("10.9.0.1".parse().unwrap()),
            v6: None,
        };
        let intercept = Intercept {
            node,
            ports: vec![7410, 7411, 7412],
            mark: 0x2000,
        };
        let config = kernel_config(&intercept, examples::directory().ranges);
        assert_eq!(config.version, Config::VERSION);
        assert_eq!(
            (config.mark, config.mark_mask, config.port_count),
            (0x2000, 0x2000, 2)
        );
        assert_eq!(config.ports[..3], [7410_u16.to_be(), 7411_u16.to_be(), 0]);
        assert_eq!(
            (config.intercept4.ip(), config.intercept6),
            ("10.9.0.1".parse().unwrap(), Addr::NONE)
        );
        assert!(config.vip4.contains(&Addr::from(
            "198.19.1.1".parse::<std::net::IpAddr>().unwrap()
        )));
        assert_eq!(
            config.offline_lease_ns, 0,
            "nobody has vouched for the directory yet"
        );
    }
}
