//! Whether the node would start its pods after a reboot without a link: what kubelet and these pods
//! need, and what of it is in memory and on the disk.
//!
//! Images are not looked at, nor what a volume plug-in needs besides claim and volume.

mod needs;
mod volumes;

use std::collections::BTreeSet;

use super::{DiskStatus, Memory, Remembered};
use crate::cache::{
    Cache, Identity, Needed, ObjectName, ObjectRef, Representation, Resource, Scope, Selection,
    SetStatus,
};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Metadata, Object, Shape};
use needs::Needs;

/// Kubelet starts no pod before it has read these.
const KUBELET_ESSENTIALS: [&str; 3] = ["nodes", "pods", "services"];
/// More than a screen shows is of no use.
const MAX_REASONS: usize = 20;

/// What all pods of the node need together.
#[derive(Debug, Default)]
pub(super) struct PresentPods {
    /// Whether kubelet has read its pods at all.
    pub(super) are_known: bool,
    /// In which kubelet reads them, and so all else.
    encodings: BTreeSet<Encoding>,
    names: BTreeSet<ObjectName>,
    pub(super) uids: BTreeSet<String>,
    /// What must not be forgotten.
    pub(super) needed: Needed,
    required: BTreeSet<ObjectRef>,
    /// Namespace and service account.
    tokens: BTreeSet<(String, String)>,
    /// For people.
    problems: BTreeSet<String>,
}

/// What was written to the disk last.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnDisk {
    pods: BTreeSet<ObjectName>,
    missing: BTreeSet<String>,
}

impl Memory {
    /// The state in memory, which is on the disk.
    pub(super) fn on_disk(&self) -> OnDisk {
        let now = self.now();
        let kept = self.lock();
        OnDisk::of(&kept, &kept.cache.statuses(now))
    }

    /// What present pods cannot start without and the node has not read: once for each form that
    /// kubelet may ask for after a reboot.
    pub(crate) fn missing_objects(&self) -> BTreeSet<Scope> {
        let kept = self.lock();
        let present = PresentPods::read(&kept.cache);
        let mut scopes = BTreeSet::new();
        for object in &present.required {
            if kept.cache.node_has(object) {
                continue;
            }
            for encoding in &present.encodings {
                for version in versions(&object.group) {
                    scopes.insert(scope_of(object, version, *encoding));
                }
            }
        }
        scopes
    }

    /// What a node would miss after a reboot without a link, for people; empty: nothing.
    pub(crate) fn missing_after_reboot(&self, disk: &DiskStatus) -> Vec<String> {
        let now = self.now();
        let kept = self.lock();
        let present = PresentPods::read(&kept.cache);
        let mut missing: BTreeSet<_> = missing(&kept, &present, &kept.cache.statuses(now));
        drop(kept);
        match &disk.on_disk {
            None => {
                missing.insert("nothing was written to the disk yet".to_owned());
            }
            Some(on_disk) => {
                missing.extend(on_disk.missing.iter().cloned());
                for pod in present.names.difference(&on_disk.pods) {
                    let ObjectName { namespace, name } = pod;
                    missing.insert(format!("pod {namespace}/{name} is not on the disk yet"));
                }
            }
        }
        if let Some(error) = &disk.last_error {
            missing.insert(format!("the disk cannot be written: {error}"));
        }
        let count = missing.len();
        let mut missing: Vec<String> = missing.into_iter().take(MAX_REASONS).collect();
        if count > MAX_REASONS {
            missing.push(format!("{} more", count - MAX_REASONS));
        }
        missing
    }
}

impl OnDisk {
    /// What a state that was written, or read, still needs.
    pub(super) fn of(kept: &Remembered, sets: &[SetStatus]) -> Self {
        let present = PresentPods::read(&kept.cache);
        Self {
            missing: missing(kept, &present, sets),
            pods: present.names,
        }
    }

    /// Whether the node would start its pods with it.
    pub(super) fn is_enough(&self) -> bool {
        self.missing.is_empty()
    }
}

/// The versions in which kubelets read objects of this group. No API server has all of them.
fn versions(group: &str) -> &'static [&'static str] {
    match group {
        "resource.k8s.io" => &["v1", "v1beta2", "v1beta1"],
        _ => &["v1"],
    }
}

/// The scope of a GET.
fn scope_of(object: &ObjectRef, version: &str, encoding: Encoding) -> Scope {
    let ObjectName { namespace, name } = &object.name;
    Scope {
        representation: Representation {
            resource: Resource {
                group: object.group.clone(),
                version: version.to_owned(),
                resource: object.resource.clone(),
            },
            encoding,
            shape: Shape::Object,
        },
        selection: Selection {
            namespace: (!namespace.is_empty()).then(|| namespace.clone()),
            name: Some(name.clone()),
            label_selector: String::new(),
            field_selector: String::new(),
        },
    }
}

fn missing(kept: &Remembered, present: &PresentPods, sets: &[SetStatus]) -> BTreeSet<String> {
    let mut missing = missing_of_kubelet(sets);
    missing.extend(present.problems.iter().cloned());
    for object in &present.required {
        if !kept.cache.node_has(object) {
            missing.insert(format!("{object} is missing"));
        }
    }
    for (namespace, account) in &present.tokens {
        if !kept.tokens.has_token_of(namespace, account) {
            missing.insert(format!("a token of {namespace}/{account} is missing"));
        }
    }
    missing
}

fn missing_of_kubelet(sets: &[SetStatus]) -> BTreeSet<String> {
    let mut missing = BTreeSet::new();
    for needed in KUBELET_ESSENTIALS {
        let mut sets: Vec<_> = sets.iter().collect();
        sets.retain(|set| {
            let resource = &set.scope.representation.resource;
            set.essential && resource.group.is_empty() && resource.resource == needed
        });
        if sets.is_empty() {
            missing.insert(format!("kubelet has not read {needed} yet"));
        } else if sets.iter().all(|set| set.behind) {
            missing.insert(format!(
                "{needed} in memory are older than what the API server told"
            ));
        }
    }
    missing
}

impl PresentPods {
    /// Reads the pods of the node, and the claims that they name.
    pub(super) fn read(cache: &Cache) -> Self {
        let mut present = Self {
            are_known: cache.node_reads("pods"),
            ..Self::default()
        };
        let mut node = None;
        for (encoding, pod) in cache.objects_of_node("pods") {
            present.encodings.insert(encoding);
            present.names.insert(ObjectName {
                namespace: pod.metadata.namespace.clone(),
                name: pod.metadata.name.clone(),
            });
            present.uids.insert(pod.metadata.uid.clone());
            if node.is_none() {
                node = needs::node_name(encoding, &pod).unwrap_or_default();
            }
            match Needs::of_pod(encoding, &pod) {
                Ok(Some(needs)) => present.add(&pod, needs),
                Ok(None) => {}
                Err(error) => present.add_problem(&pod, &error),
            }
        }
        present.add_volumes(cache, node.as_deref());
        let required = present.required.iter().cloned();
        present.needed.objects.extend(required);
        present
    }

    fn add(&mut self, pod: &Object, needs: Needs) {
        let namespace = &pod.metadata.namespace;
        self.required.extend(needs.required);
        self.needed.objects.extend(needs.used);
        self.needed.identities.insert(Identity::ServiceAccount {
            namespace: namespace.clone(),
            name: needs.account.clone(),
        });
        if needs.has_token {
            self.tokens.insert((namespace.clone(), needs.account));
        }
        if needs.has_certificate {
            let name = &pod.metadata.name;
            self.problems.insert(format!(
                "pod {namespace}/{name} needs a certificate that only the API server issues"
            ));
        }
    }

    fn add_problem(&mut self, pod: &Object, error: &SplitError) {
        let Metadata {
            namespace, name, ..
        } = &pod.metadata;
        self.problems.insert(format!(
            "what pod {namespace}/{name} needs is not understood: {error}"
        ));
    }

    fn add_volumes(&mut self, cache: &Cache, node: Option<&str>) {
        let mut found = BTreeSet::new();
        for claim in &self.required {
            if claim.resource != "persistentvolumeclaims" {
                continue;
            }
            for (encoding, claim) in cache.versions_of(claim) {
                found.extend(volumes::of_claim(encoding, &claim).ok().flatten());
            }
        }
        for volume in &found {
            for (encoding, volume) in cache.versions_of(volume) {
                let used = volumes::of_volume(encoding, &volume, node);
                self.needed.objects.extend(used.unwrap_or_default());
            }
        }
        self.required.extend(found);
    }
}
