//! Who may connect to name-routed and forwarded ports.

use std::net::IpAddr;

use culvert_proxy_core::directory::Directory;
use ipnet::IpNet;

/// Ranges that no public client comes from: private addresses, shared ones of providers, loopback,
/// and link-local ones.
const PRIVATE: [&str; 9] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "fc00::/7",
    "fe80::/10",
    "::1/128",
];

/// The clients of such ports. Clones share the directory.
#[derive(Clone)]
pub enum Admitted {
    /// The ranges of the flag, and no others.
    Given(Vec<IpNet>),
    /// Private ranges, pods, this host, and the cluster's cloud nodes: connections of pods may come
    /// from the address of their node.
    Default {
        /// Private ranges, and those of pods.
        ranges: Vec<IpNet>,
        /// The nodes.
        directory: Directory,
    },
}

impl Admitted {
    /// `given` is `--name-client` or `--forward-client`, `pods` is `--pod-range`.
    pub fn new(given: &[IpNet], pods: &[IpNet], directory: Directory) -> Self {
        if !given.is_empty() {
            return Self::Given(given.to_vec());
        }
        let private = PRIVATE.iter().filter_map(|range| range.parse().ok());
        Self::Default {
            ranges: private.chain(pods.iter().copied()).collect(),
            directory,
        }
    }

    /// Whether `client` may connect. `local` is the address of this host that it dialled.
    pub(crate) fn has(&self, client: IpAddr, local: Option<IpAddr>) -> bool {
        let client = client.to_canonical();
        match self {
            Self::Given(ranges) => any_has(ranges, client),
            Self::Default { ranges, directory } => {
                any_has(ranges, client)
                    || local.is_some_and(|local| local.to_canonical() == client)
                    || directory
                        .clouds()
                        .values()
                        .any(|node| node.addresses.contains(&client))
            }
        }
    }
}

fn any_has(ranges: &[IpNet], client: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(&client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_private_addresses_pods_and_this_host_may_connect() {
        let folder = tempfile::tempdir().unwrap();
        let directory = Directory::for_tests(folder.path(), &[]);
        let pods = ["198.51.100.0/24".parse().unwrap()];
        let may = |given: &[IpNet], client: &str| {
            let local = Some("203.0.113.1".parse().unwrap());
            Admitted::new(given, &pods, directory.clone()).has(client.parse().unwrap(), local)
        };
        for client in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "100.64.0.1",
            "fd00::1",
            "fe80::1",
            "127.0.0.1",
            "::1",
            "198.51.100.7",
            "203.0.113.1",
        ] {
            assert!(may(&[], client), "{client}");
        }
        for client in ["203.0.113.2", "8.8.8.8", "2001:db8::1"] {
            assert!(!may(&[], client), "{client}");
        }
        let given = ["203.0.113.0/24".parse().unwrap()];
        assert!(may(&given, "203.0.113.2"));
        assert!(!may(&given, "10.1.2.3"), "only what is given");
    }

    #[test]
    fn every_private_range_is_one() {
        assert!(PRIVATE.iter().all(|range| range.parse::<IpNet>().is_ok()));
    }
}
