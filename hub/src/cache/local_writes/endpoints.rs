//! Endpoints follow pods. A pod that starts again has another address, and the controller that
//! writes it into endpoints is behind the link: kube-proxy would lead clients to the old one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use memchr::memmem;
use serde_json::Value as Json;

use super::{LocalWriteError, Remembered, Target, check_node};
use crate::cache::overlay::Worth;
use crate::cache::{Cache, ObjectName, Representation, Resource};
use crate::wire::path::{self, Step};
use crate::wire::replace::{self, Edited, json};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Metadata, Object, Shape};

/// `podIPs` of a pod's status.
const POD_ADDRESSES: [Step; 3] = [Step("status", 3), Step("podIPs", 12), Step("ip", 1)];

/// Where an object has endpoints: `discovery.EndpointSlice`, and `core.v1.Endpoints`.
struct EndpointPaths {
    endpoint: &'static [Step],
    /// In the endpoint.
    address: Step,
    target: Step,
}

const SLICE_PATHS: [EndpointPaths; 1] = [EndpointPaths {
    endpoint: &[Step("endpoints", 2)],
    address: Step("addresses", 1),
    target: Step("targetRef", 4),
}];

const ENDPOINTS_PATHS: [EndpointPaths; 2] = [
    EndpointPaths {
        endpoint: &[Step("subsets", 2), Step("addresses", 1)],
        address: Step("ip", 1),
        target: Step("targetRef", 2),
    },
    EndpointPaths {
        endpoint: &[Step("subsets", 2), Step("notReadyAddresses", 2)],
        address: Step("ip", 1),
        target: Step("targetRef", 2),
    },
];

/// `core.v1.ObjectReference`.
mod reference {
    use super::Step;

    pub(super) const KIND: Step = Step("kind", 1);
    pub(super) const NAMESPACE: Step = Step("namespace", 2);
    pub(super) const NAME: Step = Step("name", 3);
}

/// The kinds of objects that say where the pods of a service are.
#[derive(Clone, Copy)]
enum Kind {
    EndpointSlice,
    Endpoints,
}

impl Kind {
    fn of(resource: &Resource) -> Option<Self> {
        match (&*resource.group, &*resource.resource) {
            ("discovery.k8s.io", "endpointslices") => Some(Self::EndpointSlice),
            ("", "endpoints") => Some(Self::Endpoints),
            _ => None,
        }
    }

    fn places(self) -> &'static [EndpointPaths] {
        match self {
            Self::EndpointSlice => &SLICE_PATHS,
            Self::Endpoints => &ENDPOINTS_PATHS,
        }
    }
}

/// A pod and where it is now.
struct Pod<'a> {
    name: &'a ObjectName,
    addresses: Vec<IpAddr>,
}

impl Cache {
    /// Leads endpoints to the addresses that a pod of the node has after this patch of its status.
    /// What is not understood stays as it was.
    pub(super) fn lead_endpoints(&mut self, target: &Target, node: Option<&str>, patch: &[u8]) {
        if !target.is_pod() || !self.runs_here(target, node) {
            return;
        }
        let mut addresses = addresses_in_patch(patch);
        if addresses.is_empty() {
            // Kubelet says what differs from what it read. It reads protobuf, which has no overlay.
            addresses = self.addresses_as_read(target);
        }
        let pod = Pod {
            name: &target.name,
            addresses,
        };
        for (of, name) in self.endpoints_of(pod.name) {
            let Remembered::Object(object, item_type) = self.remembered(&of, &name) else {
                continue;
            };
            let led = Kind::of(&of.resource)
                .map_or(Ok(None), |kind| kind.lead(of.encoding, &object.bytes, &pod));
            let Ok(Some(bytes)) = led else {
                continue;
            };
            // Controllers, which write endpoints, do not read them here, so the version may be any
            // later one.
            let metadata = Metadata {
                resource_version: object.metadata.resource_version + 1,
                ..object.metadata.clone()
            };
            let led = Object {
                metadata: object.metadata.clone(),
                bytes: bytes.into(),
            };
            let Representation {
                resource, encoding, ..
            } = of;
            let endpoints = Target { resource, name };
            led.with_metadata(encoding, metadata)
                .map_err(LocalWriteError::from)
                .and_then(|led| {
                    self.record_written(&endpoints, encoding, led, item_type, Worth::Saving)
                })
                // Too many overlays: the patch itself was the last one that had room.
                .ok();
        }
    }

    fn runs_here(&self, pod: &Target, node: Option<&str>) -> bool {
        match self.in_any_encoding(pod) {
            Ok(known) => check_node(pod, node, known.encoding, &known.object).is_ok(),
            Err(_) => false,
        }
    }

    fn addresses_as_read(&self, pod: &Target) -> Vec<IpAddr> {
        for encoding in [Encoding::Protobuf, Encoding::Json] {
            let Remembered::Object(object, _) =
                self.remembered(&pod.in_encoding(encoding), &pod.name)
            else {
                continue;
            };
            let mut addresses = Vec::new();
            path::visit(encoding, &object.bytes, &POD_ADDRESSES, &mut |value| {
                addresses.extend(path::text(encoding, value)?.parse::<IpAddr>());
                Ok(())
            })
            .ok();
            return addresses;
        }
        Vec::new()
    }

    /// The objects that may have an endpoint of this pod.
    fn endpoints_of(&self, pod: &ObjectName) -> BTreeSet<(Representation, ObjectName)> {
        let mut found = BTreeSet::new();
        for (of, sets) in &self.sets {
            if of.shape != Shape::Object || Kind::of(&of.resource).is_none() {
                continue;
            }
            for set in sets.values() {
                for (name, object) in &*set.generation.members {
                    if name.namespace == pod.namespace
                        && memmem::find(&object.bytes(), pod.name.as_bytes()).is_some()
                    {
                        found.insert((of.clone(), name.clone()));
                    }
                }
            }
        }
        found
    }
}

impl Kind {
    fn lead(self, encoding: Encoding, object: &[u8], pod: &Pod<'_>) -> Edited {
        let mut present = None;
        for place in self.places() {
            let led = replace::at(
                encoding,
                present.as_deref().unwrap_or(object),
                place.endpoint,
                &mut |endpoint| {
                    if !pod.is_target(encoding, endpoint, place.target)? {
                        return Ok(None);
                    }
                    replace::at(encoding, endpoint, &[place.address], &mut |address| {
                        pod.lead(encoding, address)
                    })
                },
            )?;
            present = led.or(present);
        }
        Ok(present)
    }
}

impl Pod<'_> {
    fn is_target(
        &self,
        encoding: Encoding,
        endpoint: &[u8],
        target: Step,
    ) -> Result<bool, SplitError> {
        for (field, expected) in [
            (reference::KIND, "Pod"),
            (reference::NAMESPACE, &self.name.namespace),
            (reference::NAME, &self.name.name),
        ] {
            let mut is_it = false;
            path::visit(encoding, endpoint, &[target, field], &mut |value| {
                is_it = path::text(encoding, value)? == expected;
                Ok(())
            })?;
            if !is_it {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The pod's address in place of another one of the same family.
    fn lead(&self, encoding: Encoding, address: &[u8]) -> Edited {
        let text = path::text(encoding, address)?;
        let Ok(old) = text.parse::<IpAddr>() else {
            return Ok(None);
        };
        let new = self
            .addresses
            .iter()
            .find(|it| it.is_ipv4() == old.is_ipv4());
        match new {
            Some(new) if *new != old => Ok(Some(match encoding {
                Encoding::Json => json::string(&new.to_string()),
                Encoding::Protobuf => new.to_string().into_bytes(),
            })),
            Some(_) | None => Ok(None),
        }
    }
}

/// The addresses that a patch of a pod's status sets.
fn addresses_in_patch(patch: &[u8]) -> Vec<IpAddr> {
    let patch: Json = serde_json::from_slice(patch).unwrap_or_default();
    let status = &patch["status"];
    let mut addresses = Vec::new();
    for pod_ip in status["podIPs"].as_array().into_iter().flatten() {
        // A strategic merge patch names those that go too.
        if pod_ip.get("$patch").is_none() {
            addresses.extend(address(&pod_ip["ip"]));
        }
    }
    addresses.extend(address(&status["podIP"]));
    addresses.dedup();
    addresses
}

fn address(value: &Json) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests;
