//! What a pod names and cannot start without. Names and numbers of fields are those of
//! `generated.proto` in `k8s.io/api/core/v1`.

use std::collections::BTreeSet;

use crate::wire::Encoding;
use crate::wire::path::{Step, is_set, text, visit};
use crate::wire::split::SplitError;

/// All in the namespace of the pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) secrets: BTreeSet<String>,
    pub(super) config_maps: BTreeSet<String>,
    /// The service account, if the pod has a volume with a token of it.
    pub(super) token_of: Option<String>,
}

/// Where a pod names a secret or config map.
struct Reference {
    /// To what has the name, and may say that it is optional.
    path: &'static [Step],
    name: &'static [Step],
    optional: Step,
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

const fn optional(number: u64) -> Step {
    Step("optional", number)
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

const TOKEN: &[Step] = &[
    SPEC,
    VOLUMES,
    VOLUME_SOURCE,
    PROJECTED,
    SOURCES,
    Step("serviceAccountToken", 4),
];
const ACCOUNT: &[Step] = &[SPEC, Step("serviceAccountName", 8)];
const PHASE: &[Step] = &[Step("status", 3), Step("phase", 1)];

impl Needs {
    /// `None`: the pod has ended and is not started again.
    pub(super) fn of_pod(encoding: Encoding, pod: &[u8]) -> Result<Option<Self>, SplitError> {
        let phase = first(encoding, pod, PHASE)?;
        if matches!(phase.as_deref(), Some("Succeeded" | "Failed")) {
            return Ok(None);
        }
        let mut has_token = false;
        visit(encoding, pod, TOKEN, &mut |_| {
            has_token = true;
            Ok(())
        })?;
        let account = first(encoding, pod, ACCOUNT)?.filter(|name| !name.is_empty());
        Ok(Some(Self {
            secrets: named(encoding, pod, SECRETS)?,
            config_maps: named(encoding, pod, CONFIG_MAPS)?,
            token_of: has_token.then(|| account.unwrap_or_else(|| "default".to_owned())),
        }))
    }
}

fn first(encoding: Encoding, pod: &[u8], path: &[Step]) -> Result<Option<String>, SplitError> {
    let mut found = None;
    visit(encoding, pod, path, &mut |value| {
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
            if is_set(encoding, source, reference.optional)? {
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

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn both_encodings_name_what_a_pod_cannot_start_without() {
        for (encoding, body) in [
            (Encoding::Json, JSON.as_bytes()),
            (Encoding::Protobuf, PROTOBUF),
        ] {
            let (pods, _) = crate::wire::tests::split_list(encoding, body).unwrap();
            let needs = Needs::of_pod(encoding, &pods[0].bytes).unwrap().unwrap();
            assert_eq!(
                needs,
                Needs {
                    secrets: set(&["env", "env-from", "init", "projected", "volume"]),
                    config_maps: set(&["env", "env-from", "init", "projected", "volume"]),
                    token_of: Some("cart".to_owned()),
                },
                "{encoding:?}"
            );
            let plain = Needs::of_pod(encoding, &pods[1].bytes).unwrap().unwrap();
            assert_eq!(plain, Needs::default(), "{encoding:?}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_needs_nothing() {
        let pod = r#"{"spec":{"volumes":[{"secret":{"secretName":"a"}}]},"status":{"phase":"Succeeded"}}"#;
        assert_eq!(Needs::of_pod(Encoding::Json, pod.as_bytes()).unwrap(), None);
    }
}
