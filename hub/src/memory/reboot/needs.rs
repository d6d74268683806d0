//! What a pod names and cannot start without. Names and numbers of fields are those of
//! `generated.proto` in `k8s.io/api/core/v1`.

use std::collections::BTreeSet;

use crate::cache::ObjectRef;
use crate::wire::path::{Step, is_set, text, visit};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Object};

/// What one pod needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Without these the pod does not start.
    pub(super) required: BTreeSet<ObjectRef>,
    /// Kubelet reads these too, if they are there.
    pub(super) used: BTreeSet<ObjectRef>,
    /// Its service account.
    pub(super) account: String,
    /// It has a volume with a token of its service account.
    pub(super) has_token: bool,
    /// It has a volume with a certificate, which the API server issues at each start.
    pub(super) has_certificate: bool,
}

/// Where a pod names an object of its namespace.
struct Reference {
    /// To what has the name, and may say that it is optional.
    path: &'static [Step],
    name: &'static [Step],
    /// Where it says so. `None`: what is named here is never optional.
    optional: Option<Step>,
}

impl Reference {
    const fn required(path: &'static [Step], name: &'static [Step]) -> Self {
        Self {
            path,
            name,
            optional: None,
        }
    }
}

const SPEC: Step = Step("spec", 2);
const VOLUMES: Step = Step("volumes", 1);
const VOLUME_SOURCE: Step = Step("", 2);
const PROJECTED: Step = Step("projected", 26);
const SOURCES: Step = Step("sources", 1);
const CONTAINERS: Step = Step("containers", 2);
const INIT_CONTAINERS: Step = Step("initContainers", 20);
const ENV: Step = Step("env", 7);
const VALUE_FROM: Step = Step("valueFrom", 3);
const ENV_FROM: Step = Step("envFrom", 19);
/// A `LocalObjectReference` is inlined.
const LOCAL_NAME: &[Step] = &[Step("", 1), Step("name", 1)];

const fn optional(number: u64) -> Option<Step> {
    Some(Step("optional", number))
}

const SECRETS: &[Reference] = &[
    Reference {
        path: &[SPEC, VOLUMES, VOLUME_SOURCE, Step("secret", 6)],
        name: &[Step("secretName", 1)],
        optional: optional(4),
    },
    Reference {
        path: &[
            SPEC,
            VOLUMES,
            VOLUME_SOURCE,
            PROJECTED,
            SOURCES,
            Step("secret", 1),
        ],
        name: LOCAL_NAME,
        optional: optional(4),
    },
    Reference {
        path: &[SPEC, CONTAINERS, ENV, VALUE_FROM, Step("secretKeyRef", 4)],
        name: LOCAL_NAME,
        optional: optional(3),
    },
    Reference {
        path: &[
            SPEC,
            INIT_CONTAINERS,
            ENV,
            VALUE_FROM,
            Step("secretKeyRef", 4),
        ],
        name: LOCAL_NAME,
        optional: optional(3),
    },
    Reference {
        path: &[SPEC, CONTAINERS, ENV_FROM, Step("secretRef", 3)],
        name: LOCAL_NAME,
        optional: optional(2),
    },
    Reference {
        path: &[SPEC, INIT_CONTAINERS, ENV_FROM, Step("secretRef", 3)],
        name: LOCAL_NAME,
        optional: optional(2),
    },
];

const CONFIG_MAPS: &[Reference] = &[
    Reference {
        path: &[SPEC, VOLUMES, VOLUME_SOURCE, Step("configMap", 19)],
        name: LOCAL_NAME,
        optional: optional(4),
    },
    Reference {
        path: &[
            SPEC,
            VOLUMES,
            VOLUME_SOURCE,
            PROJECTED,
            SOURCES,
            Step("configMap", 3),
        ],
        name: LOCAL_NAME,
        optional: optional(4),
    },
    Reference {
        path: &[
            SPEC,
            CONTAINERS,
            ENV,
            VALUE_FROM,
            Step("configMapKeyRef", 3),
        ],
        name: LOCAL_NAME,
        optional: optional(3),
    },
    Reference {
        path: &[
            SPEC,
            INIT_CONTAINERS,
            ENV,
            VALUE_FROM,
            Step("configMapKeyRef", 3),
        ],
        name: LOCAL_NAME,
        optional: optional(3),
    },
    Reference {
        path: &[SPEC, CONTAINERS, ENV_FROM, Step("configMapRef", 2)],
        name: LOCAL_NAME,
        optional: optional(2),
    },
    Reference {
        path: &[SPEC, INIT_CONTAINERS, ENV_FROM, Step("configMapRef", 2)],
        name: LOCAL_NAME,
        optional: optional(2),
    },
];

const CLAIMS: &[Reference] = &[Reference::required(
    &[
        SPEC,
        VOLUMES,
        VOLUME_SOURCE,
        Step("persistentVolumeClaim", 10),
    ],
    &[Step("claimName", 1)],
)];

const RESOURCE_CLAIMS: &[Reference] = &[
    Reference::required(
        &[SPEC, Step("resourceClaims", 39)],
        &[Step("resourceClaimName", 3)],
    ),
    // Claims that were made from a template.
    Reference::required(
        &[STATUS, Step("resourceClaimStatuses", 15)],
        &[Step("resourceClaimName", 2)],
    ),
    Reference::required(
        &[STATUS, Step("extendedResourceClaimStatus", 18)],
        &[Step("resourceClaimName", 2)],
    ),
];

/// Kubelet asks volume plug-ins with these. An image that is there may need the secret that it was
/// pulled with.
const USED_SECRETS: &[Reference] = &[
    Reference::required(&[SPEC, Step("imagePullSecrets", 15)], &[Step("name", 1)]),
    Reference::required(
        &[
            SPEC,
            VOLUMES,
            VOLUME_SOURCE,
            Step("csi", 28),
            Step("nodePublishSecretRef", 5),
        ],
        &[Step("name", 1)],
    ),
    Reference::required(
        &[
            SPEC,
            VOLUMES,
            VOLUME_SOURCE,
            Step("flexVolume", 12),
            Step("secretRef", 3),
        ],
        &[Step("name", 1)],
    ),
    Reference::required(
        &[
            SPEC,
            VOLUMES,
            VOLUME_SOURCE,
            Step("iscsi", 8),
            Step("secretRef", 10),
        ],
        &[Step("name", 1)],
    ),
];

const TOKEN: &[Step] = &[
    SPEC,
    VOLUMES,
    VOLUME_SOURCE,
    PROJECTED,
    SOURCES,
    Step("serviceAccountToken", 4),
];
const CERTIFICATE: &[Step] = &[
    SPEC,
    VOLUMES,
    VOLUME_SOURCE,
    PROJECTED,
    SOURCES,
    Step("podCertificate", 6),
];
const ACCOUNT: &[Step] = &[SPEC, Step("serviceAccountName", 8)];
const STATUS: Step = Step("status", 3);
const PHASE: &[Step] = &[STATUS, Step("phase", 1)];
/// A field of a volume.
const VOLUME_NAME: &[Step] = &[Step("name", 1)];
const EPHEMERAL: &[Step] = &[VOLUME_SOURCE, Step("ephemeral", 29)];

impl Needs {
    /// `None`: the pod has ended and is not started again.
    pub(super) fn of_pod(encoding: Encoding, pod: &Object) -> Result<Option<Self>, SplitError> {
        let bytes = &pod.bytes[..];
        let phase = first(encoding, bytes, PHASE)?;
        if matches!(phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Ok(None);
        }
        let account = first(encoding, bytes, ACCOUNT)?.filter(|name| !name.is_empty());
        let mut needs = Self {
            account: account.unwrap_or_else(|| "default".to_owned()),
            has_token: exists(encoding, bytes, TOKEN)?,
            has_certificate: exists(encoding, bytes, CERTIFICATE)?,
            ..Self::default()
        };
        let namespace = &pod.metadata.namespace;
        for (resource, references) in [
            ("secrets", SECRETS),
            ("configmaps", CONFIG_MAPS),
            ("persistentvolumeclaims", CLAIMS),
        ] {
            for name in named(encoding, bytes, references)? {
                let object = ObjectRef::new("", resource, namespace, &name);
                needs.required.insert(object);
            }
        }
        needs.add_made_claims(encoding, pod)?;
        for name in named(encoding, bytes, USED_SECRETS)? {
            let secret = ObjectRef::new("", "secrets", namespace, &name);
            needs.used.insert(secret);
        }
        let account = ObjectRef::new("", "serviceaccounts", namespace, &needs.account);
        needs.used.insert(account);
        Ok(Some(needs))
    }

    /// Claims whose names are those of the pod's own parts.
    fn add_made_claims(&mut self, encoding: Encoding, pod: &Object) -> Result<(), SplitError> {
        let namespace = &pod.metadata.namespace;
        for name in named(encoding, &pod.bytes, RESOURCE_CLAIMS)? {
            let claim = ObjectRef::new("resource.k8s.io", "resourceclaims", namespace, &name);
            self.required.insert(claim);
        }
        for volume in ephemeral_volumes(encoding, &pod.bytes)? {
            let name = format!("{}-{volume}", pod.metadata.name);
            let claim = ObjectRef::new("", "persistentvolumeclaims", namespace, &name);
            self.required.insert(claim);
        }
        Ok(())
    }
}

/// The node that a pod runs on.
pub(super) fn node_name(encoding: Encoding, pod: &Object) -> Result<Option<String>, SplitError> {
    first(encoding, &pod.bytes, &[SPEC, Step("nodeName", 10)])
}

/// Names of volumes whose claims kubelet finds by the name of pod and volume.
fn ephemeral_volumes(encoding: Encoding, pod: &[u8]) -> Result<Vec<String>, SplitError> {
    let mut names = Vec::new();
    visit(encoding, pod, &[SPEC, VOLUMES], &mut |volume| {
        if exists(encoding, volume, EPHEMERAL)? {
            names.extend(first(encoding, volume, VOLUME_NAME)?);
        }
        Ok(())
    })?;
    Ok(names)
}

fn exists(encoding: Encoding, value: &[u8], path: &[Step]) -> Result<bool, SplitError> {
    let mut exists = false;
    visit(encoding, value, path, &mut |_| {
        exists = true;
        Ok(())
    })?;
    Ok(exists)
}

/// The text of the last value at a path.
pub(super) fn first(
    encoding: Encoding,
    value: &[u8],
    path: &[Step],
) -> Result<Option<String>, SplitError> {
    let mut found = None;
    visit(encoding, value, path, &mut |value| {
        found = Some(text(encoding, value)?);
        Ok(())
    })?;
    Ok(found)
}

fn named(
    encoding: Encoding,
    pod: &[u8],
    references: &[Reference],
) -> Result<BTreeSet<String>, SplitError> {
    let mut names = BTreeSet::new();
    for reference in references {
        visit(encoding, pod, reference.path, &mut |source| {
            if let Some(optional) = reference.optional
                && is_set(encoding, source, optional)?
            {
                return Ok(());
            }
            let name = first(encoding, source, reference.name)?;
            names.extend(name.filter(|name| !name.is_empty()));
            Ok(())
        })?;
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an API server (1.20) sent it, and the same pods as kubectl writes them.
    const PROTOBUF: &[u8] = include_bytes!("bodies/pods.pb");
    const JSON: &str = include_str!("bodies/pods.json");

    #[test]
    fn both_encodings_name_what_a_pod_cannot_start_without() {
        let names = ["env", "env-from", "init", "projected", "volume"];
        for (encoding, body) in [
            (Encoding::Json, JSON.as_bytes()),
            (Encoding::Protobuf, PROTOBUF),
        ] {
            let (pods, _) = crate::wire::tests::split_list(encoding, body).unwrap();
            let needs = Needs::of_pod(encoding, &pods[0]).unwrap().unwrap();
            let namespace = &pods[0].metadata.namespace;
            let mut expected = BTreeSet::new();
            for resource in ["secrets", "configmaps"] {
                expected.extend(names.map(|name| ObjectRef::new("", resource, namespace, name)));
            }
            assert_eq!(needs.required, expected, "{encoding:?}");
            assert_eq!((needs.account.as_str(), needs.has_token), ("cart", true));
            let plain = Needs::of_pod(encoding, &pods[1]).unwrap().unwrap();
            assert!(
                plain.required.is_empty() && !plain.has_token,
                "{encoding:?}"
            );
        }
    }

    fn object(namespace: &str, name: &str, json: &str) -> Object {
        Object {
            metadata: crate::wire::Metadata {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..crate::wire::Metadata::default()
            },
            bytes: json.to_owned().into(),
        }
    }

    #[test]
    fn a_pod_that_has_ended_needs_nothing() {
        let pod = r#"{"spec":{"volumes":[{"secret":{"secretName":"a"}}]},"status":{"phase":"Succeeded"}}"#;
        let pod = object("shop", "job", pod);
        assert_eq!(Needs::of_pod(Encoding::Json, &pod).unwrap(), None);
    }

    #[test]
    fn claims_volumes_devices_and_secrets_of_plug_ins_are_needs() {
        let pod = object(
            "shop",
            "cart",
            r#"{"spec":{"imagePullSecrets":[{"name":"pull"}],"resourceClaims":[{"name":"a","resourceClaimName":"gpu"}],
            "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"disk"}},{"name":"scratch","ephemeral":{}},
            {"name":"inline","csi":{"driver":"d","nodePublishSecretRef":{"name":"inline"}}},
            {"name":"tls","projected":{"sources":[{"podCertificate":{"signerName":"s"}}]}}]},
            "status":{"resourceClaimStatuses":[{"name":"b","resourceClaimName":"cart-b-x"}]}}"#,
        );
        let needs = Needs::of_pod(Encoding::Json, &pod).unwrap().unwrap();
        let claim = |name| ObjectRef::new("", "persistentvolumeclaims", "shop", name);
        let device = |name| ObjectRef::new("resource.k8s.io", "resourceclaims", "shop", name);
        let required = [
            claim("disk"),
            claim("cart-scratch"),
            device("gpu"),
            device("cart-b-x"),
        ];
        assert_eq!(needs.required, BTreeSet::from(required));
        let secret = |name| ObjectRef::new("", "secrets", "shop", name);
        let account = ObjectRef::new("", "serviceaccounts", "shop", "default");
        assert_eq!(
            needs.used,
            BTreeSet::from([secret("pull"), secret("inline"), account])
        );
        assert!(needs.has_certificate);
    }
}
