//! A selector of nodes by their labels, as kubectl's `-l` reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use culvert_api::kubelet_may_write;

/// Selects the nodes whose labels meet all of its requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSelector(Vec<Requirement>);

/// What one label of a node must be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    label: String,
    condition: Condition,
}

/// What a node must have as the value of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// One of these values.
    In(BTreeSet<String>),
    /// Another value, or no such label.
    NotIn(BTreeSet<String>),
    /// This value.
    Equal(String),
    /// Another value, or no such label.
    NotEqual(String),
    /// Any value.
    Exists,
    /// No such label.
    DoesNotExist,
}

/// A text that is not a selector.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is not a label selector: {problem}: write one such as \
     node-restriction.kubernetes.io/culvert-edge, key=value or key in (a,b)"
)]
pub struct InvalidSelector {
    text: String,
    problem: &'static str,
}

impl NodeSelector {
    /// Whether it selects a node with these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.is_met(labels))
    }

    /// Its labels that a kubelet may write on its own Node.
    pub fn labels_of_kubelets(&self) -> Vec<String> {
        let mut labels = Vec::new();
        for requirement in &self.0 {
            if kubelet_may_write(&requirement.label) {
                labels.push(requirement.label.clone());
            }
        }
        labels
    }
}

impl Requirement {
    fn is_met(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.label);
        match &self.condition {
            Condition::In(values) => value.is_some_and(|value| values.contains(value)),
            Condition::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Condition::Equal(one) => value == Some(one),
            Condition::NotEqual(one) => value != Some(one),
            Condition::Exists => value.is_some(),
            Condition::DoesNotExist => value.is_none(),
        }
    }
}

impl fmt::Display for NodeSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, requirement) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = &self.label;
        match &self.condition {
            Condition::In(values) => write!(f, "{label} in ({})", list(values)),
            Condition::NotIn(values) => write!(f, "{label} notin ({})", list(values)),
            Condition::Equal(value) => write!(f, "{label}={value}"),
            Condition::NotEqual(value) => write!(f, "{label}!={value}"),
            Condition::Exists => f.write_str(label),
            Condition::DoesNotExist => write!(f, "!{label}"),
        }
    }
}

fn list(values: &BTreeSet<String>) -> String {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    values.join(",")
}

impl FromStr for NodeSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let mut checked = Vec::new();
        for part in requirements(text) {
            match requirement(part.trim()) {
                Ok(requirement) => checked.push(requirement),
                Err(problem) => {
                    return Err(InvalidSelector {
                        text: text.chars().take(300).collect(),
                        problem,
                    });
                }
            }
        }
        Ok(Self(checked))
    }
}

/// The parts between commas outside of parentheses.
fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |character| {
        depth += i32::from(character == '(') - i32::from(character == ')');
        character == ',' && depth == 0
    })
}

fn requirement(text: &str) -> Result<Requirement, &'static str> {
    let (label, condition) = if let Some(list) = text.strip_suffix(')') {
        let (before, values) = list.split_once('(').ok_or("a parenthesis is not opened")?;
        let (label, operator) = before
            .trim()
            .rsplit_once(char::is_whitespace)
            .ok_or("`(` follows neither in nor notin")?;
        let values = values
            .split(',')
            .map(|value| self::value(value.trim()))
            .collect::<Result<_, _>>()?;
        match operator {
            "in" => (label, Condition::In(values)),
            "notin" => (label, Condition::NotIn(values)),
            _ => return Err("`(` follows neither in nor notin"),
        }
    } else if let Some((label, text)) = text.split_once("!=") {
        (label, Condition::NotEqual(value(text.trim())?))
    } else if let Some((label, text)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (label, Condition::Equal(value(text.trim())?))
    } else if let Some(label) = text.strip_prefix('!') {
        (label, Condition::DoesNotExist)
    } else {
        (text, Condition::Exists)
    };
    Ok(Requirement {
        label: key(label)?,
        condition,
    })
}

/// A label's key: a name of up to 63 characters, optionally after a DNS name and a slash.
fn key(text: &str) -> Result<String, &'static str> {
    let (prefix, name) = text.trim().rsplit_once('/').unwrap_or(("", text.trim()));
    if name.is_empty()
        || value(name).is_err()
        || prefix.len() > 253
        || !prefix.bytes().all(is_in_dns_names)
    {
        Err("a part of it is not a label's key")
    } else {
        Ok(text.trim().to_owned())
    }
}

fn is_in_dns_names(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
}

/// A label's value: up to 63 letters, digits, `-`, `_` and `.`.
fn value(text: &str) -> Result<String, &'static str> {
    if text.len() <= 63 && text.bytes().all(is_in_values) {
        Ok(text.to_owned())
    } else {
        Err("a part of it is not a label's key or value")
    }
}

fn is_in_values(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        selector.parse::<NodeSelector>().unwrap().selects(&labels)
    }

    #[test]
    fn all_forms_of_kubectl_are_understood() {
        let labels = [("culvert.dev/edge", ""), ("zone", "a")];
        for yes in [
            "culvert.dev/edge",
            "culvert.dev/edge=",
            "zone=a",
            "zone == a",
            "zone!=b",
            "!cloud",
            "zone in (b, a)",
            "zone notin (b,c),culvert.dev/edge",
        ] {
            assert!(selects(yes, &labels), "{yes}");
        }
        for no in ["culvert.dev/edge=true", "zone", "zone in (b)"] {
            assert!(
                !selects(no, &[("zone2", "a"), ("culvert.dev/edge", "")]),
                "{no}"
            );
        }
        assert!(!selects("!zone", &labels));
        assert!(!selects("zone=a,!culvert.dev/edge", &labels));
    }

    fn labels_of_kubelets(selector: &str) -> String {
        let selector: NodeSelector = selector.parse().unwrap();
        selector.labels_of_kubelets().join(" ")
    }

    #[test]
    fn labels_of_kubelets_are_known() {
        let reserved = "node-restriction.kubernetes.io/culvert-edge";
        assert_eq!(labels_of_kubelets(reserved), "");
        let mixed = "node-role.kubernetes.io/edge,zone!=a,culvert.dev/edge";
        assert_eq!(labels_of_kubelets(mixed), "zone culvert.dev/edge");
    }

    #[test]
    fn what_is_no_selector_is_told_so() {
        for bad in [
            "", ",", "a,", "a b", "a in b", "a in (b", "a (b)", "A B=c", "a=b c", "UPPER/a", "=b",
        ] {
            let error = bad.parse::<NodeSelector>().unwrap_err().to_string();
            assert!(
                error.contains("write one such as node-restriction"),
                "{bad}: {error}"
            );
        }
    }
}
