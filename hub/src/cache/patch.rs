//! What a patch of kubelet makes of a cached object, while the API server cannot be asked.
//!
//! Only JSON copies can be patched: nothing here can encode protobuf. The result is laid over the
//! JSON copy, for those who read JSON, and is the answer, as kubelet reads JSON too. Kubelet itself
//! reads pods and nodes in protobuf: that copy stays as it was. Without a JSON copy it is the answer
//! to the patch, which kubelet takes as an acknowledgement; it sees that its status is not in it, and
//! sends it again.

mod strategic;

use serde_json::{Map, Value};

use crate::wire::{Object, TypeMeta};

/// How a patch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchType {
    /// `application/merge-patch+json`, RFC 7386.
    Merge,
    /// `application/strategic-merge-patch+json`, of pods and nodes.
    StrategicMerge,
}

/// Why a patch was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    #[error("read the object")]
    Object { source: serde_json::Error },
    #[error("read the patch")]
    Patch { source: serde_json::Error },
    /// 409, as the API server answers.
    #[error("metadata.{field} is not that of the object")]
    Conflict { field: &'static str },
    #[error("the merge keys of {kind} are not known")]
    UnknownKind { kind: String },
    #[error("the merge keys in {field} are not known")]
    UnknownField { field: String },
    #[error("malformed strategic merge patch: {problem}")]
    Malformed { problem: &'static str },
}

/// The object, which is in JSON, after a patch. Its resource version stays: the API server has not
/// seen the patch.
pub(crate) fn patched(
    object: &Object,
    item_type: &TypeMeta,
    patch_type: PatchType,
    patch: &[u8],
) -> Result<Object, PatchError> {
    let original = read(&object.bytes).map_err(|source| PatchError::Object { source })?;
    let mut patch = read(patch).map_err(|source| PatchError::Patch { source })?;
    check_preconditions(object, &mut patch)?;
    let merged = match patch_type {
        PatchType::Merge => merge(Value::Object(original), Value::Object(patch)),
        PatchType::StrategicMerge => Value::Object(strategic::merge(item_type, original, patch)?),
    };
    Ok(Object {
        metadata: object.metadata.clone(),
        bytes: merged.to_string().into(),
    })
}

fn read(bytes: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// A patch that names a uid or a resource version is only for that object. Whatever it says of
/// the object's identity is taken out: a patch cannot change it.
fn check_preconditions(object: &Object, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(Value::Object(metadata)) = patch.get_mut("metadata") else {
        return Ok(());
    };
    let resource_version = object.metadata.resource_version.to_string();
    let named = [
        ("uid", object.metadata.uid.as_str()),
        ("resourceVersion", resource_version.as_str()),
        ("name", object.metadata.name.as_str()),
        ("namespace", object.metadata.namespace.as_str()),
    ];
    for (field, own) in named {
        if metadata
            .remove(field)
            .is_some_and(|given| !given.is_null() && given != own)
        {
            return Err(PatchError::Conflict { field });
        }
    }
    Ok(())
}

/// RFC 7386.
fn merge(target: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch;
    };
    let mut merged = Map::new();
    if let Value::Object(target) = target {
        merged = target;
    }
    for (key, value) in patch {
        let earlier = merged.remove(&key).unwrap_or_default();
        if !value.is_null() {
            merged.insert(key, merge(earlier, value));
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::Metadata;

    fn object() -> Object {
        let metadata = Metadata {
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: "u".to_owned(),
            resource_version: 7,
        };
        let bytes = json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "7"},
            "status": {"phase": "Pending"},
        });
        Object {
            metadata,
            bytes: bytes.to_string().into(),
        }
    }

    fn patch(patch: &Value) -> Result<Value, PatchError> {
        let pod = TypeMeta::new("v1", "Pod");
        let patch = patch.to_string();
        let patched = patched(&object(), &pod, PatchType::StrategicMerge, patch.as_bytes())?;
        Ok(serde_json::from_slice(&patched.bytes).unwrap())
    }

    #[test]
    fn the_examples_of_rfc_7386_come_out() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            assert_eq!(merge(target, patch), result);
        }
    }

    #[test]
    fn a_patch_keeps_the_identity_and_the_resource_version() {
        let patch = patch(&json!({"metadata": {"uid": "u"}, "status": {"phase": "Failed"}}));
        let expected = json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "7"},
            "status": {"phase": "Failed"},
        });
        assert_eq!(patch.unwrap(), expected);
    }

    #[test]
    fn a_patch_of_another_incarnation_is_a_conflict() {
        let patch = patch(&json!({"metadata": {"uid": "other"}}));
        assert!(matches!(patch, Err(PatchError::Conflict { field: "uid" })));
    }
}
