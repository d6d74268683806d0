//! One ConfigMap of VIPs.

use std::collections::BTreeMap;

use culvert_proxy_core::directory::{Allocation, VipRanges, Vips};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

use crate::configmap::empty;

/// The keys.
const VIP4: &str = "vip4-range";
const VIP6: &str = "vip6-range";
/// The host part of the ranges that each node has, and those that are not yet free for reuse, as
/// JSON.
const VIPS: &str = "vips";
/// In the first one: how many there are. Absent: one.
const SHARDS: &str = "shards";

/// The content of a ConfigMap, and the rest of the object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shard {
    pub(super) ranges: VipRanges,
    pub(super) vips: Vips,
    count: usize,
    /// Without the VIPs' JSON.
    rest: ConfigMap,
}

impl Shard {
    /// One that does not exist yet.
    pub(super) fn new(name: &str, ranges: VipRanges) -> Self {
        Self {
            ranges,
            vips: Vips::default(),
            count: 1,
            rest: empty(name),
        }
    }

    /// `None`: it has no content yet.
    pub(super) fn read(mut map: ConfigMap) -> Result<Option<Self>, String> {
        let Some(data) = &mut map.data else {
            return Ok(None);
        };
        let [Some(vip4), Some(vip6), Some(vips)] = [VIP4, VIP6, VIPS].map(|key| data.get(key))
        else {
            return if [VIP4, VIP6, VIPS].iter().any(|key| data.contains_key(*key)) {
                Err(format!("it lacks one of {VIP4}, {VIP6} and {VIPS}"))
            } else {
                Ok(None)
            };
        };
        let Allocation { ranges, vips } = allocation(vip4, vip6, vips)?;
        let count = match data.get(SHARDS) {
            Some(count) => count
                .trim()
                .parse()
                .map_err(|_| format!("{SHARDS} is not a number"))?,
            None => 1,
        };
        data.remove(VIPS);
        Ok(Some(Self {
            ranges,
            vips,
            count,
            rest: map,
        }))
    }

    /// How many there are, by the first one.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// There are at least so many.
    pub(super) fn announce(&mut self, count: usize) {
        self.count = self.count.max(count);
    }

    pub(super) fn is_version(&self, of: &ObjectMeta) -> bool {
        let own = &self.rest.metadata;
        own.uid == of.uid && own.resource_version == of.resource_version
    }

    pub(super) fn set_version(&mut self, of: ObjectMeta) {
        self.rest.metadata = of;
    }

    /// The object.
    pub(super) fn map(&self) -> Result<ConfigMap, String> {
        let vips = serde_json::to_string(&self.vips).map_err(|error| error.to_string())?;
        let mut map = self.rest.clone();
        let data = map.data.get_or_insert_default();
        data.insert(VIP4.to_owned(), self.ranges.vip4.to_string());
        data.insert(VIP6.to_owned(), self.ranges.vip6.to_string());
        data.insert(VIPS.to_owned(), vips);
        if self.count > 1 {
            data.insert(SHARDS.to_owned(), self.count.to_string());
        }
        Ok(map)
    }
}

/// The length of all keys and values.
pub(super) fn bytes(map: &ConfigMap) -> usize {
    let none = BTreeMap::new();
    let mut bytes = 0;
    for (key, value) in map.data.as_ref().unwrap_or(&none) {
        bytes += key.len() + value.len();
    }
    bytes
}

fn allocation(vip4: &str, vip6: &str, vips: &str) -> Result<Allocation, String> {
    let Ok(vip4) = vip4.trim().parse() else {
        return Err(format!("{VIP4} is not a range"));
    };
    let Ok(vip6) = vip6.trim().parse() else {
        return Err(format!("{VIP6} is not a range"));
    };
    let ranges = VipRanges::checked(vip4, vip6, &[]).map_err(|error| error.to_string())?;
    let vips = serde_json::from_str(vips).map_err(|error| format!("{VIPS}: {error}"))?;
    let allocation = Allocation { ranges, vips };
    match allocation.problem() {
        Some(problem) => Err(problem),
        None => Ok(allocation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(data: &[(&str, &str)]) -> ConfigMap {
        let mut map = empty("culvert-vips");
        let all = map.data.get_or_insert_default();
        for (key, value) in data {
            all.insert((*key).to_owned(), (*value).to_owned());
        }
        map
    }

    #[test]
    fn a_config_map_without_our_keys_is_one_to_be_filled() {
        assert_eq!(Shard::read(ConfigMap::default()), Ok(None));
        assert_eq!(Shard::read(map(&[("note", "kept")])), Ok(None));
    }

    #[test]
    fn what_somebody_broke_is_named() {
        let problem = |vip4: &str, vips: &str| {
            let map = map(&[(VIP4, vip4), (VIP6, "fd00:1::/64"), (VIPS, vips)]);
            Shard::read(map).unwrap_err()
        };
        assert!(problem("198.18", "{}").contains("vip4-range is not a range"));
        assert!(problem("198.18.0.0/15", "{}").contains("vips: missing field"));
        let twice = r#"{"held": {"a": 1, "b": 1}, "resting": {}}"#;
        assert!(problem("198.18.0.0/15", twice).contains("a and b have the same host part 1"));
        let lacking = Shard::read(map(&[(VIP4, "198.18.0.0/15")]));
        assert!(lacking.unwrap_err().contains("lacks one of"));
    }

    #[test]
    fn what_others_added_to_the_object_stays() {
        let vips = r#"{"held":{"a":1},"resting":{}}"#;
        let read = map(&[
            (VIP4, "198.18.0.0/15"),
            (VIP6, "fd00:1::/64"),
            (VIPS, vips),
            ("note", "kept"),
        ]);
        let mut shard = Shard::read(read.clone()).unwrap().unwrap();
        assert_eq!(shard.map().unwrap(), read);
        shard.announce(3);
        assert_eq!(shard.map().unwrap().data.unwrap()[SHARDS], "3");
    }
}
