//! Labels of Nodes: who may write them.

/// Prefixes that are reserved for Kubernetes, with all that end in `.PREFIX`.
const RESERVED: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// The domains whose labels are the kubelet's, likewise.
const KUBELET_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Further reserved labels that are the kubelet's.
const KUBELET_LABELS: [&str; 10] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Whether a kubelet may set and remove the label of its own Node with this key, where the API
/// server has the admission plugin NodeRestriction. Without the plugin it may write every label.
///
/// The rules are those of Kubernetes since 1.20: `plugin/pkg/admission/noderestriction`, and
/// `well_known_labels.go` of the kubelet.
#[must_use]
pub fn kubelet_may_write(label: &str) -> bool {
    let prefix = label.split_once('/').map_or("", |(prefix, _)| prefix);
    if !is_within(prefix, &RESERVED) {
        return true;
    }
    is_within(prefix, &KUBELET_DOMAINS) || KUBELET_LABELS.contains(&label)
}

fn is_within(prefix: &str, domains: &[&str]) -> bool {
    domains.iter().any(|domain| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|before| before.is_empty() || before.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // tests/kubernetes/placement.rs asks a real API server the same.
    #[test]
    fn a_label_is_the_kubelets_unless_its_prefix_is_reserved_and_not_for_kubelets() {
        for label in [
            "culvert.dev/cloud",
            "cloud",
            "node.kubernetes.io/cloud",
            "a.kubelet.kubernetes.io/cloud",
            "kubernetes.io/hostname",
            "mykubernetes.io/cloud",
            "openyurt.io/is-edge-worker",
        ] {
            assert!(kubelet_may_write(label), "{label}");
        }
        for label in [
            "node-restriction.kubernetes.io/culvert-cloud",
            "site.node-restriction.kubernetes.io/cloud",
            "node-role.kubernetes.io/control-plane",
            "kubernetes.io/role",
            "example.k8s.io/cloud",
        ] {
            assert!(!kubelet_may_write(label), "{label}");
        }
    }
}
