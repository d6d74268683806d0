//! What manifests of Kubernetes say: names of objects, flags and variables of containers.

use std::collections::BTreeMap;

use serde_json::Value;

/// An object of Kubernetes.
#[derive(Debug)]
pub(super) struct Object(pub(super) Value);

/// A container of a Pod, Deployment or DaemonSet.
#[derive(Debug)]
pub(super) struct Container {
    /// Its name, image and command: what tells the program.
    pub(super) words: String,
    pub(super) flags: Vec<Flag>,
    /// Names of environment variables.
    pub(super) variables: Vec<String>,
}

/// `--name=value`, `--name value` or `--name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flag {
    /// Without dashes.
    pub(super) name: String,
    pub(super) value: Option<String>,
}

/// The text, or an empty one.
pub(super) fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

impl Object {
    pub(super) fn kind(&self) -> &str {
        text(self.0.get("kind"))
    }

    /// The name in its metadata.
    pub(super) fn bare_name(&self) -> &str {
        text(self.0.pointer("/metadata/name"))
    }

    /// A text such as `Deployment kube-system/yurt-tunnel-server`.
    pub(super) fn name(&self) -> String {
        let namespace = text(self.0.pointer("/metadata/namespace"));
        match (namespace, self.bare_name()) {
            (_, "") => self.kind().to_owned(),
            ("", name) => format!("{} {name}", self.kind()),
            (namespace, name) => format!("{} {namespace}/{name}", self.kind()),
        }
    }

    /// The keys and texts of a ConfigMap.
    pub(super) fn data(&self) -> BTreeMap<&str, &str> {
        let mut data = BTreeMap::new();
        for (key, value) in self
            .0
            .get("data")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            if let Some(value) = value.as_str() {
                data.insert(key.as_str(), value);
            }
        }
        data
    }

    /// The containers of a Pod, or of the template of another kind.
    pub(super) fn containers(&self) -> Vec<Container> {
        let spec = match self.kind() {
            "Pod" => self.0.get("spec"),
            _ => self.0.pointer("/spec/template/spec"),
        };
        let Some(spec) = spec else {
            return Vec::new();
        };
        items(spec, "containers").iter().map(container).collect()
    }
}

/// The items of a list.
fn items<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    match object.get(key) {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

/// The texts of a list.
fn texts(object: &Value, key: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for item in items(object, key) {
        if let Some(text) = item.as_str() {
            texts.push(text.to_owned());
        }
    }
    texts
}

fn container(given: &Value) -> Container {
    let command = texts(given, "command");
    let program = command.first().cloned().unwrap_or_default();
    let words: Vec<String> = [command, texts(given, "args")].concat();
    let variables = items(given, "env").iter();
    Container {
        words: format!(
            "{} {} {program} {}",
            text(given.get("name")),
            text(given.get("image")),
            shell(&words)
        ),
        flags: flags(&words),
        variables: variables
            .map(|variable| text(variable.get("name")).to_owned())
            .collect(),
    }
}

/// The program that a shell starts: the command is one text then.
fn shell(words: &[String]) -> &str {
    match words.iter().find(|word| word.contains(" -")) {
        Some(line) => line.split(" -").next().unwrap_or_default(),
        None => "",
    }
}

/// The flags of a command line. The text for a shell is taken apart at its spaces.
fn flags(words: &[String]) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    let apart = words.iter().flat_map(|word| {
        if word.contains(" --") {
            word.split_whitespace().collect()
        } else {
            vec![word.as_str()]
        }
    });
    let mut waits = false;
    for word in apart {
        let bare = word.trim_start_matches('-');
        // `-c` of a shell is no flag of the tunnel.
        if word == "-c" || bare.is_empty() {
            continue;
        }
        if bare.len() == word.len() {
            if let (true, Some(last)) = (waits, flags.last_mut()) {
                last.value = Some(word.to_owned());
            }
            waits = false;
            continue;
        }
        let (name, value) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        waits = value.is_none();
        flags.push(Flag {
            name: name.to_owned(),
            value,
        });
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Vec<(String, Option<String>)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        flags(&words)
            .into_iter()
            .map(|flag| (flag.name, flag.value))
            .collect()
    }

    fn flag(name: &str, value: Option<&str>) -> (String, Option<String>) {
        (name.to_owned(), value.map(str::to_owned))
    }

    #[test]
    fn flags_are_read_however_they_are_written() {
        let read_of = read(&["tunnel", "--a=1", "--b", "2", "-v=2", "--on", "--c", "x"]);
        let expected = [
            flag("a", Some("1")),
            flag("b", Some("2")),
            flag("v", Some("2")),
            flag("on", None),
            flag("c", Some("x")),
        ];
        assert_eq!(read_of, expected);
        assert_eq!(
            read(&[
                "/bin/sh",
                "-c",
                "exec yurt-tunnel-server --v=2 --bind-address $(IP)"
            ]),
            [flag("v", Some("2")), flag("bind-address", Some("$(IP)"))]
        );
    }
}
