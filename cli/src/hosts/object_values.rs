//! Objects of Kubernetes without what others may have put secrets into.

use serde_json::Value;

const REMOVED: &str = "[removed]";
/// The end of the annotation in which kubectl keeps a copy of the whole object.
const COPY: &str = "/last-applied-configuration";

/// Blanks values of environment variables, and copies of objects in annotations.
pub(super) fn blank(value: &mut Value) {
    match value {
        Value::Array(parts) => {
            for part in parts {
                blank(part);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                blank_field(name, field);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn blank_field(name: &str, field: &mut Value) {
    if name.ends_with(COPY) {
        *field = REMOVED.into();
    } else if name == "env"
        && let Some(variables) = field.as_array_mut()
    {
        blank_variables(variables);
    } else {
        blank(field);
    }
}

fn blank_variables(variables: &mut [Value]) {
    for variable in variables {
        if let Some(value) = variable.get_mut("value") {
            *value = REMOVED.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_and_copies_of_objects_are_blank() {
        let mut sets = json!([{
            "metadata": {"name": "culvert-proxy", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{hunter2}",
                "other": "stays",
            }},
            "spec": {"template": {"spec": {"containers": [{
                "name": "culvert-proxy",
                "env": [
                    {"name": "DSN", "value": "hunter2"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
            }]}}},
        }]);
        blank(&mut sets);
        let text = sets.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        for part in ["culvert-proxy", "stays", "DSN", "spec.nodeName"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
