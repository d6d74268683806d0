//! Objects of manifests, to compare them whatever way they are written in.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use culvert_lab::workspace;
use serde_json::{Map, Value};
use xtask::manifests::chart::helm;

/// A chart whose output is the YAML in its file `in.yaml` as one JSON object.
const CONVERTER: [(&str, &str); 2] = [
    (
        "Chart.yaml",
        "{apiVersion: v2, name: converter, version: 0.0.0}",
    ),
    (
        "templates/out.yaml",
        r#"{{- $documents := list }}
{{- range regexSplit "(?m)^---$" (.Files.Get "in.yaml") -1 }}
{{- with fromYaml . }}{{ $documents = append $documents . }}{{ end }}
{{- end }}
{{- dict "documents" $documents | toJson }}"#,
    ),
];

/// Objects by their kind, namespace and name.
pub(crate) type Objects = BTreeMap<String, Value>;

/// The documents of a YAML text, parsed by Helm.
pub(crate) fn documents(yaml: &str) -> Result<Vec<Value>> {
    let chart = tempfile::tempdir()?;
    fs::create_dir(chart.path().join("templates"))?;
    for (file, text) in CONVERTER {
        fs::write(chart.path().join(file), text)?;
    }
    fs::write(chart.path().join("in.yaml"), yaml)?;
    let mut convert = helm(chart.path());
    let json = workspace::output(convert.args(["template", "converter"]).arg(chart.path()))?;
    let start = json.find('{').context("Helm printed no object")?;
    let mut json: Value = serde_json::from_str(&json[start..])?;
    let Value::Array(documents) = json["documents"].take() else {
        anyhow::bail!("no documents: {json}");
    };
    for document in &documents {
        // Helm's word for a text that is no YAML.
        ensure!(document.get("Error").is_none(), "{document}");
    }
    Ok(documents)
}

/// The objects of manifests. What means the same to the API server or the program is equal: a list
/// that is empty and none, and any order of flags.
pub(crate) fn objects(manifests: &str) -> Result<Objects> {
    let mut objects = Objects::new();
    for mut object in documents(manifests)? {
        let id = id(&object)?;
        simplify(&mut object);
        ensure!(
            objects.insert(id.clone(), object).is_none(),
            "{id} is there twice"
        );
    }
    Ok(objects)
}

fn id(object: &Value) -> Result<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let metadata = &object["metadata"];
    let kind = text(&object["kind"]).with_context(|| format!("no kind: {object}"))?;
    let name = text(&metadata["name"]).with_context(|| format!("no name: {object}"))?;
    Ok(match text(&metadata["namespace"]) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    })
}

fn simplify(value: &mut Value) {
    match value {
        Value::Object(fields) => simplify_fields(fields),
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn simplify_fields(fields: &mut Map<String, Value>) {
    if let Some(args) = fields.get_mut("args").and_then(Value::as_array_mut)
        && args.iter().all(is_flag)
    {
        args.sort_by_key(ToString::to_string);
    }
    fields.retain(|_, value| {
        !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty())
    });
    fields.values_mut().for_each(simplify);
}

/// Whether it is a flag with its value, which may stand anywhere.
fn is_flag(arg: &Value) -> bool {
    arg.as_str().is_some_and(|arg| arg.starts_with("--"))
}
