//! The location of the hosts file, a ConfigMap and its key, and the address of edge nodes in it.
//! Pure.

use std::str::FromStr;

use super::super::configmap::ConfigMapName;

/// SuperEdge's key, and the default.
const KEY: &str = "hosts";
/// The ConfigMaps of YurtTunnel and Raven, with their key.
const YURT: ([&str; 2], &str) = (["yurt-tunnel-nodes", "edge-tunnel-nodes"], "tunnel-nodes");

/// The value of `--hosts-configmap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostsPlace {
    pub(in super::super) config_map: ConfigMapName,
    pub(super) key: String,
}

/// The value of `--hosts-address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HostsAddress {
    /// Each node's VIP.
    Vip,
    /// The ClusterIP of `--name-service`.
    Service,
}

/// A text that does not name a ConfigMap.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no ConfigMap: write NAMESPACE/NAME, such as kube-system/yurt-tunnel-nodes, or \
     NAMESPACE/NAME/KEY"
)]
pub(crate) struct InvalidPlace(String);

impl FromStr for HostsPlace {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, name, key) = match parts[..] {
            [namespace, name] if YURT.0.contains(&name) => (namespace, name, YURT.1),
            [namespace, name] => (namespace, name, KEY),
            [namespace, name, key] => (namespace, name, key),
            _ => return Err(InvalidPlace(text.to_owned())),
        };
        if ![namespace, name, key].into_iter().all(is_name) {
            return Err(InvalidPlace(text.to_owned()));
        }
        let config_map = ConfigMapName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Ok(Self {
            config_map,
            key: key.to_owned(),
        })
    }
}

/// Whether it can be a name or a key in Kubernetes.
fn is_name(part: &str) -> bool {
    (1..=253).contains(&part.len())
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_that_of_the_tunnel_whose_config_map_it_is() {
        let key = |text: &str| text.parse::<HostsPlace>().map(|place| place.key);
        assert_eq!(
            key("kube-system/yurt-tunnel-nodes").unwrap(),
            "tunnel-nodes"
        );
        assert_eq!(key("edge-system/tunnel-nodes").unwrap(), "hosts");
        assert_eq!(
            key("kube-system/coredns-custom/edge.hosts").unwrap(),
            "edge.hosts"
        );
        for wrong in [
            "yurt-tunnel-nodes",
            "kube-system/",
            "/x",
            "a/b/c/d",
            "a/b c",
            "",
        ] {
            assert!(key(wrong).is_err(), "{wrong}");
        }
    }
}
