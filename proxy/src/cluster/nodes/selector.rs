//! A selector of nodes by their labels, as kubectl's `-l` reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use culvert_api::kubelet_may_write;
use kube::core::{Expression, Selector, SelectorExt};

/// Selects nodes by their labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeSelector(Selector);

/// A text that is not a selector.
#[derive(Debug, thiserror::Error)]
#[error(
    "{text:?} is not a label selector: {problem}: write one such as \
     node-restriction.kubernetes.io/culvert-edge, key=value or key in (a,b)"
)]
pub(crate) struct InvalidSelector {
    text: String,
    problem: &'static str,
}

impl NodeSelector {
    /// Whether it selects a node with these labels.
    pub(super) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }

    /// Those of its labels that a kubelet may write of its own Node.
    pub(crate) fn labels_of_kubelets(&self) -> Vec<String> {
        let labels = self.0.clone().into_iter().map(label);
        labels.filter(|label| kubelet_may_write(label)).collect()
    }
}

fn label(expression: Expression) -> String {
    match expression {
        Expression::In(label, _)
        | Expression::NotIn(label, _)
        | Expression::Equal(label, _)
        | Expression::NotEqual(label, _)
        | Expression::Exists(label)
        | Expression::DoesNotExist(label) => label,
    }
}

impl fmt::Display for NodeSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for NodeSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let invalid = |problem| InvalidSelector {
            text: text.chars().take(300).collect(),
            problem,
        };
        let requirements: Result<Selector, _> = requirements(text)
            .map(|part| expression(part.trim()))
            .collect();
        Ok(Self(requirements.map_err(invalid)?))
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

fn expression(text: &str) -> Result<Expression, &'static str> {
    if let Some(list) = text.strip_suffix(')') {
        let (before, values) = list.split_once('(').ok_or("a parenthesis is not opened")?;
        let (name, operator) = before
            .trim()
            .rsplit_once(char::is_whitespace)
            .ok_or("`(` follows neither in nor notin")?;
        let values = values
            .split(',')
            .map(|value| self::value(value.trim()))
            .collect::<Result<_, _>>()?;
        return match operator {
            "in" => Ok(Expression::In(key(name)?, values)),
            "notin" => Ok(Expression::NotIn(key(name)?, values)),
            _ => Err("`(` follows neither in nor notin"),
        };
    }
    if let Some((name, text)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(name)?, value(text.trim())?));
    }
    if let Some((name, text)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Expression::Equal(key(name)?, value(text.trim())?));
    }
    match text.strip_prefix('!') {
        Some(name) => Ok(Expression::DoesNotExist(key(name)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

/// A label's key: a name of up to 63 characters, optionally after a DNS name and a slash.
fn key(text: &str) -> Result<String, &'static str> {
    let (prefix, name) = text.trim().rsplit_once('/').unwrap_or(("", text.trim()));
    let in_prefix = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    if name.is_empty()
        || value(name).is_err()
        || prefix.len() > 253
        || !prefix.bytes().all(in_prefix)
    {
        Err("a part of it is not a label's key")
    } else {
        Ok(text.trim().to_owned())
    }
}

/// A label's value: up to 63 letters, digits, `-`, `_` and `.`.
fn value(text: &str) -> Result<String, &'static str> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if text.len() <= 63 && text.bytes().all(inner) {
        Ok(text.to_owned())
    } else {
        Err("a part of it is not a label's key or value")
    }
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
