//! Strategic merge patches of pods and nodes: `metadata` and `status`, and the `spec` of nodes. The
//! source is `apimachinery/pkg/util/strategicpatch/patch.go`; the merge keys are those of
//! `k8s.io/api/core/v1/types.go`. Lists without one, as `containerStatuses`, are replaced.

use serde_json::{Map, Value};

use super::PatchError;
use crate::wire::TypeMeta;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// How a list is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMerge {
    Replace,
    /// Its elements are told apart by this field.
    ByKey(&'static str),
    /// Strings or numbers; each is there once.
    Primitives,
}

/// The kinds that kubelet patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pod,
    Node,
}

impl Kind {
    fn list_merge(self, path: &str) -> ListMerge {
        match (self, path) {
            (_, "/metadata/finalizers") | (Self::Node, "/spec/podCIDRs") => ListMerge::Primitives,
            (_, "/metadata/ownerReferences") => ListMerge::ByKey("uid"),
            (_, "/status/conditions") | (Self::Node, "/status/addresses") => {
                ListMerge::ByKey("type")
            }
            (Self::Pod, "/status/podIPs" | "/status/hostIPs") => ListMerge::ByKey("ip"),
            (Self::Pod, "/status/resourceClaimStatuses") => ListMerge::ByKey("name"),
            (Self::Pod, "/status/nodeAllocatableResourceClaimStatuses") => {
                ListMerge::ByKey("resourceClaimName")
            }
            _ => ListMerge::Replace,
        }
    }
}

/// Merges a patch into an object of this kind.
pub(super) fn merge(
    item_type: &TypeMeta,
    original: Map<String, Value>,
    patch: Map<String, Value>,
) -> Result<Map<String, Value>, PatchError> {
    let kind = match (item_type.api_version.as_str(), item_type.kind.as_str()) {
        ("v1", "Pod") => Kind::Pod,
        ("v1", "Node") => Kind::Node,
        (_, kind) => {
            return Err(PatchError::UnknownKind {
                kind: kind.to_owned(),
            });
        }
    };
    if kind == Kind::Pod && patch.contains_key("spec") {
        return Err(PatchError::UnknownField {
            field: "spec".to_owned(),
        });
    }
    merge_map(kind, "", original, patch)
}

fn merge_map(
    kind: Kind,
    path: &str,
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<Map<String, Value>, PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.retain(|key, _| !is_directive(key));
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(malformed("an unknown $patch of a map")),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    order_lists(kind, path, &mut original, &mut patch)?;
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(&mut original, list, &value)?;
            continue;
        }
        let earlier = original.remove(&key);
        if value.is_null() {
            continue;
        }
        let path = format!("{path}/{key}");
        let merged = match (earlier, value) {
            (Some(Value::Object(earlier)), Value::Object(value)) => {
                Some(Value::Object(merge_map(kind, &path, earlier, value)?))
            }
            (Some(Value::Array(earlier)), Value::Array(value)) => {
                Some(Value::Array(merge_list(kind, &path, earlier, value)?))
            }
            (_, value) => without_directives(without_nulls(value)),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

/// `$retainKeys`: all other fields go.
fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(retained) = retained else {
        return Err(malformed("$retainKeys is not a list"));
    };
    for (key, value) in patch.iter() {
        let is_list_directive =
            key.starts_with(ELEMENT_ORDER) || key.starts_with(DELETE_PRIMITIVES);
        if !value.is_null() && !is_list_directive && !retained.iter().any(|it| it == key) {
            return Err(malformed("$retainKeys lacks a field of the patch"));
        }
    }
    original.retain(|key, _| retained.iter().any(|it| it == key));
    Ok(())
}

/// `$setElementOrder/list`: merges the list, then orders it.
fn order_lists(
    kind: Kind,
    path: &str,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let mut directives: Vec<String> = patch.keys().cloned().collect();
    directives.retain(|key| key.starts_with(ELEMENT_ORDER));
    for directive in directives {
        let list = &directive[ELEMENT_ORDER.len()..];
        let Some(Value::Array(order)) = patch.remove(&directive) else {
            return Err(malformed("$setElementOrder is not a list"));
        };
        let path = format!("{path}/{list}");
        let earlier = take_list(original, list)?;
        let added = take_list(patch, list)?;
        let server_order = earlier.clone().unwrap_or_default();
        let merged = match (earlier, added) {
            (None, None) => continue,
            (Some(earlier), None) => earlier,
            (None, Some(added)) => elements_without_directives(added),
            (Some(earlier), Some(added)) => merge_list(kind, &path, earlier, added)?,
        };
        let merged = match kind.list_merge(&path) {
            ListMerge::ByKey(key) => in_order(merged, &order, &server_order, Some(key)),
            ListMerge::Replace | ListMerge::Primitives => {
                in_order(merged, &order, &server_order, None)
            }
        };
        original.insert(list.to_owned(), Value::Array(merged));
    }
    Ok(())
}

fn take_list(map: &mut Map<String, Value>, list: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match map.remove(list) {
        None => Ok(None),
        Some(Value::Array(values)) => Ok(Some(values)),
        Some(_) => Err(malformed("$setElementOrder of something that is no list")),
    }
}

fn delete_primitives(
    original: &mut Map<String, Value>,
    list: &str,
    deleted: &Value,
) -> Result<(), PatchError> {
    let Value::Array(deleted) = deleted else {
        return Err(malformed("$deleteFromPrimitiveList is not a list"));
    };
    if let Some(Value::Array(values)) = original.get_mut(list) {
        values.retain(|value| !deleted.contains(value));
    }
    Ok(())
}

fn merge_list(
    kind: Kind,
    path: &str,
    original: Vec<Value>,
    patch: Vec<Value>,
) -> Result<Vec<Value>, PatchError> {
    match kind.list_merge(path) {
        ListMerge::Replace => Ok(patch),
        ListMerge::Primitives => {
            let mut merged: Vec<Value> = Vec::new();
            for value in original.iter().chain(&patch) {
                if !merged.contains(value) {
                    merged.push(value.clone());
                }
            }
            Ok(in_order(merged, &patch, &original, None))
        }
        ListMerge::ByKey(key) => merge_keyed(kind, path, original, patch, key),
    }
}

/// Merges a list of maps, which are told apart by a field.
fn merge_keyed(
    kind: Kind,
    path: &str,
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    let mut directives = Vec::new();
    let mut elements = Vec::new();
    for element in patch {
        if element.get(DIRECTIVE).is_some() {
            directives.push(element);
        } else {
            elements.push(element);
        }
    }
    let patch = elements;
    for directive in &directives {
        match directive[DIRECTIVE].as_str() {
            Some("delete") => {
                let Some(deleted) = directive.get(key) else {
                    return Err(malformed("no merge key"));
                };
                original.retain(|it| it.get(key) != Some(deleted));
            }
            Some("replace") => {}
            _ => return Err(malformed("an unknown $patch of a list")),
        }
    }
    if directives.iter().any(|it| it[DIRECTIVE] == "replace") {
        return Ok(patch);
    }
    let mut merged = original.clone();
    for element in &patch {
        let Value::Object(map) = element else {
            return Err(malformed("a list of maps has something else"));
        };
        let Some(value) = map.get(key) else {
            return Err(malformed("no merge key"));
        };
        match merged.iter_mut().find(|it| it.get(key) == Some(value)) {
            Some(Value::Object(earlier)) => {
                *earlier = merge_map(kind, path, std::mem::take(earlier), map.clone())?;
            }
            _ => merged.push(element.clone()),
        }
    }
    Ok(in_order(merged, &patch, &original, Some(key)))
}

/// Orders a merged list: elements of the patch in its order, the others as the server had them,
/// and between the two as the server had them where it had both.
fn in_order(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let mut patched = Vec::new();
    let mut others = Vec::new();
    for element in merged {
        if place(patch_order, &element, key).is_some() {
            patched.push(element);
        } else {
            others.push(element);
        }
    }
    patched.sort_by_key(|it| place(patch_order, it, key));
    others.sort_by_key(|it| place(server_order, it, key).unwrap_or(usize::MAX));
    let mut ordered = Vec::new();
    let mut patched = patched.into_iter().peekable();
    let mut others = others.into_iter().peekable();
    while let (Some(of_patch), Some(other)) = (patched.peek(), others.peek()) {
        let of_patch = place(server_order, of_patch, key);
        let other = place(server_order, other, key);
        let other_first = of_patch.is_some() && other.is_some() && other < of_patch;
        ordered.extend(if other_first {
            others.next()
        } else {
            patched.next()
        });
    }
    ordered.extend(patched);
    ordered.extend(others);
    ordered
}

fn place(order: &[Value], element: &Value, key: Option<&str>) -> Option<usize> {
    let identity_of_element = identity(element, key);
    order
        .iter()
        .position(|it| identity(it, key) == identity_of_element)
}

fn identity<'a>(element: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => element.get(key),
        None => Some(element),
    }
}

/// What a patch says of a field that the object does not have; `None`: that it shall not have it.
/// As in apimachinery, a map with any `$patch` goes.
fn without_directives(value: Value) -> Option<Value> {
    if let Value::Array(values) = value {
        return Some(Value::Array(elements_without_directives(values)));
    }
    let Value::Object(map) = value else {
        return Some(value);
    };
    if map.contains_key(DIRECTIVE) {
        return None;
    }
    let mut kept = Map::new();
    for (key, value) in map {
        if is_directive(&key) {
            continue;
        }
        if let Some(value) = without_directives(value) {
            kept.insert(key, value);
        }
    }
    Some(Value::Object(kept))
}

fn elements_without_directives(values: Vec<Value>) -> Vec<Value> {
    let mut kept = Vec::new();
    for value in values {
        kept.extend(without_directives(value));
    }
    kept
}

fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(ELEMENT_ORDER) || key.starts_with(DELETE_PRIMITIVES)
}

/// Null means deletion; of a field that is not there, nothing is left of it.
fn without_nulls(value: Value) -> Value {
    if let Value::Array(values) = value {
        return Value::Array(values.into_iter().map(without_nulls).collect());
    }
    let Value::Object(map) = value else {
        return value;
    };
    let kept = map.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        kept.map(|(key, value)| (key, without_nulls(value)))
            .collect(),
    )
}

fn malformed(problem: &'static str) -> PatchError {
    PatchError::Malformed { problem }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Patches and their results by apimachinery v0.37.1: `CreateTwoWayMergePatch` between random
    /// pods and nodes, applied to those and to others, some with `$patch` added.
    const VECTORS: &str = include_str!("vectors.jsonl");

    fn merged(kind: &str, original: &Value, patch: &Value) -> Result<Value, PatchError> {
        let item_type = TypeMeta::new("v1", kind);
        let (Value::Object(original), Value::Object(patch)) = (original.clone(), patch.clone())
        else {
            panic!("both are maps");
        };
        merge(&item_type, original, patch).map(Value::Object)
    }

    fn claim_same_results(vectors: &str) {
        for line in vectors.lines() {
            let vector: Value = serde_json::from_str(line).unwrap();
            let kind = vector["kind"].as_str().unwrap();
            let result = merged(kind, &vector["original"], &vector["patch"]).unwrap();
            let result = decoded(result);
            if line.contains(r#""$patch":"delete""#) {
                // After a deletion, apimachinery orders by a slice that it has overwritten.
                assert_eq!(
                    sorted(result),
                    sorted(decoded(vector["result"].clone())),
                    "{line}"
                );
            } else {
                assert_eq!(result, decoded(vector["result"].clone()), "{line}");
            }
        }
    }

    /// Without the directives that apimachinery leaves: its decoder ignores them.
    fn decoded(value: Value) -> Value {
        match value {
            Value::Array(values) => Value::Array(values.into_iter().map(decoded).collect()),
            Value::Object(map) => {
                let fields = map.into_iter().filter(|(key, _)| !is_directive(key));
                Value::Object(fields.map(|(key, value)| (key, decoded(value))).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
        }
    }

    /// With the elements of all lists in some order.
    fn sorted(value: Value) -> Value {
        match value {
            Value::Array(values) => {
                let mut values: Vec<Value> = values.into_iter().map(sorted).collect();
                values.sort_by_key(Value::to_string);
                Value::Array(values)
            }
            Value::Object(map) => Value::Object(
                map.into_iter()
                    .map(|(key, value)| (key, sorted(value)))
                    .collect(),
            ),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
        }
    }

    #[test]
    fn pods_and_nodes_merge_as_in_apimachinery() {
        claim_same_results(VECTORS);
    }

    #[test]
    fn container_statuses_are_replaced_and_conditions_are_merged() {
        let original = json!({"status": {
            "conditions": [{"type": "Ready", "status": "False"}, {"type": "Other"}],
            "containerStatuses": [{"name": "a"}, {"name": "b"}],
        }});
        let patch = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "a"}],
        }});
        let expected = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}],
            "containerStatuses": [{"name": "a"}],
        }});
        assert_eq!(merged("Pod", &original, &patch).unwrap(), expected);
    }

    #[test]
    fn retained_keys_are_kept_and_others_go() {
        let original = json!({"status": {"phase": "Running", "reason": "x", "message": "m"}});
        let patch = json!({"status": {"$retainKeys": ["phase", "message"], "phase": "Failed"}});
        let expected = json!({"status": {"phase": "Failed", "message": "m"}});
        assert_eq!(merged("Pod", &original, &patch).unwrap(), expected);
    }

    #[test]
    fn what_has_unknown_merge_keys_is_refused() {
        let spec = merged("Pod", &json!({}), &json!({"spec": {"containers": []}}));
        assert!(matches!(spec, Err(PatchError::UnknownField { .. })));
        let service = merged("Service", &json!({}), &json!({}));
        assert!(matches!(service, Err(PatchError::UnknownKind { .. })));
    }
}
