//! Whether the node would start its pods after a reboot without a link: what kubelet and these pods
//! need, and what of it is in memory and on the disk.
//!
//! Images, volumes of plug-ins and pull secrets are not looked at: the first two are not the hub's,
//! and an image that is on the node needs no secret.

mod needs;

use std::collections::BTreeSet;

use crate::cache::{Cache, ObjectName, SetStatus};
use crate::memory::{DiskStatus, Kept, Memory};
use needs::Needs;

/// Without having read these, kubelet starts no pod.
const OF_KUBELET: [&str; 3] = ["nodes", "pods", "services"];
/// More than a screen shows helps nobody.
const MAX_REASONS: usize = 20;

/// What a node would miss after a reboot without a link, for people; empty: nothing.
pub(crate) fn missing(memory: &Memory, disk: &DiskStatus) -> Vec<String> {
    let now = memory.now();
    let kept = memory.lock();
    let mut missing = missing_of_kubelet(&kept.cache.statuses(now));
    missing.extend(missing_of_pods(&kept));
    if let Some(error) = &disk.last_error {
        missing.push(format!("the disk cannot be written: {error}"));
    }
    if missing.len() > MAX_REASONS {
        let more = missing.len() - MAX_REASONS;
        missing.truncate(MAX_REASONS);
        missing.push(format!("{more} more"));
    }
    missing
}

fn missing_of_kubelet(sets: &[SetStatus]) -> Vec<String> {
    let mut missing = Vec::new();
    for needed in OF_KUBELET {
        let is_it = |set: &&SetStatus| {
            let resource = &set.scope.representation.resource;
            set.essential && resource.group.is_empty() && resource.resource == needed
        };
        let mut sets = sets.iter().filter(is_it).peekable();
        if sets.peek().is_none() {
            missing.push(format!("kubelet has not read {needed} yet"));
        } else if sets.all(|set| set.behind) {
            missing.push(format!(
                "{needed} in memory are older than what the API server told"
            ));
        }
    }
    missing
}

fn missing_of_pods(kept: &Kept) -> BTreeSet<String> {
    let mut missing = BTreeSet::new();
    for (encoding, pod) in kept.cache.objects_of_node("pods") {
        let namespace = &pod.metadata.namespace;
        let of_pod = format!("{namespace}/{}", pod.metadata.name);
        let needs = match Needs::of_pod(encoding, &pod.bytes) {
            Ok(Some(needs)) => needs,
            Ok(None) => continue,
            Err(error) => {
                missing.insert(format!(
                    "what pod {of_pod} needs is not understood: {error}"
                ));
                continue;
            }
        };
        for (resource, names) in [
            ("secrets", &needs.secrets),
            ("configmaps", &needs.config_maps),
        ] {
            let lacking = names
                .iter()
                .filter(|name| !has(&kept.cache, resource, namespace, name));
            missing.extend(lacking.map(|name| format!("{resource} {namespace}/{name} is missing")));
        }
        if let Some(account) = &needs.token_of
            && !kept.has_token_of(namespace, account)
        {
            missing.insert(format!("a token of {namespace}/{account} is missing"));
        }
    }
    missing
}

fn has(cache: &Cache, resource: &str, namespace: &str, name: &str) -> bool {
    cache.node_has(
        resource,
        &ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        },
    )
}
