//! The pinned maps: configuration and destinations for the programs, and their counters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use culvert_redirector_common::names::{CONFIG_MAP, COUNTERS_MAP, DESTINATIONS_MAP};
use culvert_redirector_common::{
    Addr, Config, Counter, DestinationKey, DestinationValue, MAX_INTERCEPT_PORTS, Prefix,
};
use ipnet::IpNet;

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
        for destination in before.keys() {
            if after.contains_key(destination) {
                continue;
            }
            match self.destinations.remove(&destination.key()) {
                Ok(()) | Err(MapError::KeyNotFound) => changed.removed += 1,
                Err(source) => return Err(not_written(source)),
            }
        }
        for (destination, liveness) in after {
            if before.get(destination) != Some(liveness) {
                self.destinations
                    .insert(destination.key(), liveness.value(), 0)
                    .map_err(not_written)?;
                changed.written += 1;
            }
        }
        Ok(changed)
    }

    /// The programs' counters, summed over all CPUs.
    pub(crate) fn counts(&self) -> Result<Vec<(Counter, u64)>, TablesError> {
        let mut counts = Vec::new();
        for counter in Counter::ALL {
            let values = self.counters.get(&(counter as u32), 0);
            let values = values.map_err(|source| TablesError::Read {
                map: COUNTERS_MAP,
                source,
            })?;
            counts.push((counter, values.iter().sum()));
        }
        Ok(counts)
    }

    /// How many connects were steered, how many of these connections the proxy's sockets took, and
    /// how many binds were refused.
    pub(crate) fn judged_counts(&self) -> Result<[u64; 3], TablesError> {
        let mut judged = [0; 3];
        for (counter, count) in self.counts()? {
            match counter {
                Counter::Steered => judged[0] = count,
                Counter::Accepted => judged[1] = count,
                Counter::BindRefused => judged[2] = count,
                Counter::Unmatched
                | Counter::Exempt
                | Counter::Offline
                | Counter::NoIntercept
                | Counter::StorageFull
                | Counter::TupleFull
                | Counter::Unknown => {}
            }
        }
        Ok(judged)
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
    Config {
        offline_lease_ns: 0,
        mark: intercept.mark,
        mark_mask: intercept.mark,
        port_count: u16::try_from(hook_ports.len().min(MAX_INTERCEPT_PORTS)).unwrap_or_default(),
        ports,
        intercept4: address(intercept.node.v4.map(IpAddr::V4)),
        intercept6: address(intercept.node.v6.map(IpAddr::V6)),
        vip4: prefix(ranges.vip4.map(IpNet::V4)),
        vip6: prefix(ranges.vip6.map(IpNet::V6)),
        ..Config::default()
    }
}

fn address(ip: Option<IpAddr>) -> Addr {
    ip.map_or(Addr::NONE, Addr::from)
}

fn prefix(range: Option<IpNet>) -> Prefix {
    match range {
        Some(range) => Prefix::new(range.network(), range.prefix_len()),
        None => Prefix::NONE,
    }
}

fn not_written(source: MapError) -> TablesError {
    TablesError::Write {
        map: DESTINATIONS_MAP,
        source,
    }
}

/// Opens a pinned map as one of aya's typed maps.
pub(super) fn open<T>(pins: &Pins, name: &str) -> Result<T, TablesError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let path = pins.map(name);
    open_map(&path).map_err(|source| TablesError::Open { path, source })
}

pub(super) fn open_map<T>(path: &Path) -> Result<T, MapError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let map = Map::from_map_data(MapData::from_pin(path)?)?;
    T::try_from(map)
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
