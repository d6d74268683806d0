//! Detects data planes that carry pods' packets past netfilter, where nftables cannot steer them,
//! by the pins and interfaces that they create. It misses others (an OVN underlay, a macvlan). A
//! detected one may be configured not to bypass netfilter.

use std::path::Path;

use nix::net::if_::if_nametoindex;

/// Pin of Cilium's connect hook, below the BPF file system. It exists if Cilium replaces
/// kube-proxy, and then Cilium usually does host routing too.
const CILIUM: &str = "cilium/socketlb/links/cgroup/cil_sock4_connect";
/// Where Calico pins its maps. The route maps exist only with its eBPF data plane.
const CALICO: &str = "tc/globals";
const CALICO_MAPS: [&str; 2] = ["cali_v4_routes", "cali_v6_routes"];
/// The interface of OVN-Kubernetes on the host. With the shared gateway, which is the default,
/// pods' packets do not pass it.
const OVN: &str = "ovn-k8s-mp0";

/// The data plane of this host that probably carries pods' packets past nftables.
pub(crate) fn bypassing_data_plane(bpffs: &Path) -> Option<&'static str> {
    if bpffs.join(CILIUM).exists() {
        Some("Cilium in place of kube-proxy")
    } else if has_calico_maps(bpffs) {
        Some("Calico's eBPF data plane")
    } else if if_nametoindex(OVN).is_ok() {
        Some("OVN-Kubernetes")
    } else {
        None
    }
}

fn has_calico_maps(bpffs: &Path) -> bool {
    let Ok(pinned) = std::fs::read_dir(bpffs.join(CALICO)) else {
        return false;
    };
    for map in pinned.flatten() {
        let name = map.file_name();
        let name = name.to_string_lossy();
        if CALICO_MAPS.iter().any(|prefix| name.starts_with(prefix)) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_planes_are_known_by_their_pins() {
        let bpffs = tempfile::tempdir().unwrap();
        assert_eq!(bypassing_data_plane(bpffs.path()), None);
        let pin = |path: &str| {
            let path = bpffs.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        // The first is a pin of a Cilium beside kube-proxy, which leaves pods to netfilter. The
        // second is in Calico's folder, but is not a route map.
        pin("cilium/devices/eth0");
        pin("tc/globals/cilium_lxc");
        assert_eq!(bypassing_data_plane(bpffs.path()), None);
        pin("tc/globals/cali_v4_routes");
        assert_eq!(
            bypassing_data_plane(bpffs.path()),
            Some("Calico's eBPF data plane")
        );
        pin(CILIUM);
        assert_eq!(
            bypassing_data_plane(bpffs.path()),
            Some("Cilium in place of kube-proxy")
        );
    }
}
