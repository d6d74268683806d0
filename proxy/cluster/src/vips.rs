//! The VIPs in ConfigMap `culvert-vips`. The proxies of the cluster agree on them by optimistic
//! concurrency: each reads the ConfigMap, computes the new content, and replaces it only if nobody
//! has changed it in between.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_proxy_core::clock::UnixTime;
use culvert_proxy_core::directory::{
    Allocation, ClusterNodes, Proposal, VipError, VipLimits, VipRanges,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use super::configmap::{MAX_BYTES, empty, write};
use super::request::{RequestError, ask};

/// The ConfigMap's name.
const NAME: &str = "culvert-vips";
/// Its keys.
const VIP4: &str = "vip4-range";
const VIP6: &str = "vip6-range";
/// The host part of the ranges that each node has, and those that are not yet free for reuse, as
/// JSON.
const VIPS: &str = "vips";
/// The limit of nodes. Further ones get no VIP, and their names are not kept. Nodes that have a VIP
/// keep it.
pub(crate) const MOST: VipLimits = VipLimits {
    nodes: 20_000,
    bytes: MAX_BYTES - 1024,
};
/// Attempts while other proxies write at the same time, with a short pause after each.
const ATTEMPTS: u32 = 20;

/// The reason why the proxies do not agree on the VIPs.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgreeError {
    #[error("read the ConfigMap {NAME}")]
    Read(#[source] RequestError),
    #[error("write the ConfigMap {NAME}")]
    Write(#[source] RequestError),
    #[error("the ConfigMap {NAME} was changed by others {ATTEMPTS} times in a row")]
    Busy,
    #[error(
        "the ConfigMap {NAME} makes no sense: {problem}: restore it, or delete it to have it made \
         from what a proxy remembers"
    )]
    Broken { problem: String },
    #[error(
        "the ConfigMap {NAME} would have {bytes} bytes, the API server takes {MAX_BYTES}: there \
         are too many nodes with too long names"
    )]
    TooLong { bytes: usize },
    #[error("agree on VIPs by the ConfigMap {NAME}")]
    Vips { source: VipError },
}

/// Computes the VIPs for exactly these nodes. The cluster has stored them when this returns.
pub(super) async fn agree(
    api: &Api<ConfigMap>,
    proposal: &Proposal,
    nodes: &ClusterNodes,
) -> Result<Allocation, AgreeError> {
    for _ in 0..ATTEMPTS {
        let found = ask(api.get_opt(NAME)).await.map_err(AgreeError::Read)?;
        let kept = match &found {
            Some(found) => read(found)?,
            None => None,
        };
        let agreed = proposal.agreed(kept.clone(), nodes.edges.keys(), UnixTime::now(), MOST);
        let agreed = agreed.map_err(|source| AgreeError::Vips { source })?;
        if kept.as_ref() == Some(&agreed) {
            return Ok(agreed);
        }
        match write(api, &with(found, &agreed)?).await {
            Ok(_) => return Ok(agreed),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(AgreeError::Write(error)),
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(10..200))).await;
    }
    Err(AgreeError::Busy)
}

/// The content of the ConfigMap; `None` if it has none yet.
fn read(map: &ConfigMap) -> Result<Option<Allocation>, AgreeError> {
    let none = BTreeMap::new();
    let data = map.data.as_ref().unwrap_or(&none);
    if let Some(vip4) = data.get(VIP4)
        && let Some(vip6) = data.get(VIP6)
        && let Some(vips) = data.get(VIPS)
    {
        return allocation(vip4, vip6, vips).map(Some).map_err(broken);
    }
    if [VIP4, VIP6, VIPS].iter().any(|key| data.contains_key(*key)) {
        let problem = format!("it lacks one of {VIP4}, {VIP6} and {VIPS}");
        return Err(broken(problem));
    }
    Ok(None)
}

fn broken(problem: String) -> AgreeError {
    AgreeError::Broken { problem }
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

/// The ConfigMap that was found, or a new one, with the agreed VIPs.
fn with(found: Option<ConfigMap>, agreed: &Allocation) -> Result<ConfigMap, AgreeError> {
    let mut map = match found {
        Some(found) => found,
        None => empty(NAME),
    };
    let data = map.data.get_or_insert_default();
    data.insert(VIP4.to_owned(), agreed.ranges.vip4.to_string());
    data.insert(VIP6.to_owned(), agreed.ranges.vip6.to_string());
    let vips = serde_json::to_string(&agreed.vips).map_err(|error| AgreeError::Broken {
        problem: error.to_string(),
    })?;
    data.insert(VIPS.to_owned(), vips);
    let bytes = data
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if bytes > MAX_BYTES {
        Err(AgreeError::TooLong { bytes })
    } else {
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(data: &[(&str, &str)]) -> ConfigMap {
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn a_config_map_without_our_keys_is_one_to_be_filled() {
        assert_eq!(read(&ConfigMap::default()).unwrap(), None);
        assert_eq!(read(&map(&[("note", "kept")])).unwrap(), None);
    }

    #[test]
    fn what_somebody_broke_is_named() {
        let problem = |vip4: &str, vips: &str| {
            let map = map(&[(VIP4, vip4), (VIP6, "fd00:1::/64"), (VIPS, vips)]);
            read(&map).unwrap_err().to_string()
        };
        assert!(problem("198.18", "{}").contains("vip4-range is not a range"));
        assert!(problem("198.18.0.0/15", "{}").contains("vips: missing field"));
        let twice = r#"{"held": {"a": 1, "b": 1}, "resting": {}}"#;
        assert!(problem("198.18.0.0/15", twice).contains("a and b have the same host part 1"));
        assert!(
            read(&map(&[(VIP4, "198.18.0.0/15")]))
                .unwrap_err()
                .to_string()
                .contains("lacks one of")
        );
    }
}
