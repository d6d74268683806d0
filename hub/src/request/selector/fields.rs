//! Field selectors. The hub knows no types: the caller gives the values of the fields that it knows.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::InvalidSelector;

/// Which fields an object must have. Without requirements it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FieldSelector {
    requirements: BTreeSet<Requirement>,
}

/// What one field must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Requirement {
    field: String,
    operator: Operator,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Operator {
    Equal,
    NotEqual,
}

impl FieldSelector {
    /// `None`: it names a field whose value is not known.
    pub(crate) fn matches_fields(&self, value_of: impl Fn(&str) -> Option<String>) -> Option<bool> {
        let mut all = true;
        for requirement in &self.requirements {
            let value = value_of(&requirement.field)?;
            all &= (value == requirement.value) == (requirement.operator == Operator::Equal);
        }
        Some(all)
    }

    /// The name in `metadata.name=name`, the first if there are several.
    pub(crate) fn required_name(&self) -> Option<&str> {
        self.required_names().into_iter().next()
    }

    /// Whether one object would have to have several names. Which of these is the name of the
    /// request depends on how the text was written.
    pub(crate) fn names_several(&self) -> bool {
        self.required_names().len() > 1
    }

    fn required_names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for requirement in &self.requirements {
            if requirement.field == "metadata.name" && requirement.operator == Operator::Equal {
                names.push(&*requirement.value);
            }
        }
        names
    }
}

impl FromStr for FieldSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let terms = terms(text).into_iter().filter(|term| !term.is_empty());
        let requirements = terms.map(Requirement::from_str).collect::<Result<_, _>>()?;
        Ok(Self { requirements })
    }
}

impl FromStr for Requirement {
    type Err = InvalidSelector;

    fn from_str(term: &str) -> Result<Self, InvalidSelector> {
        // A field without a name is read by apimachinery, and of no use.
        let found = split_at_operator(term);
        let Some((field, rest)) = found.filter(|(field, _)| !field.is_empty()) else {
            return Err(InvalidSelector::Syntax {
                found: term.to_owned(),
                expected: "field=value or field!=value",
            });
        };
        let (operator, value) = match rest.strip_prefix("!=") {
            Some(value) => (Operator::NotEqual, value),
            None => (
                Operator::Equal,
                rest.strip_prefix("==").unwrap_or(&rest[1..]),
            ),
        };
        Ok(Self {
            field: field.to_owned(),
            operator,
            value: unescaped(value)?,
        })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let operator = match requirement.operator {
                Operator::Equal => "=",
                Operator::NotEqual => "!=",
            };
            write!(f, "{}{operator}", requirement.field)?;
            for c in requirement.value.chars() {
                if is_special(c) {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// The parts between commas that have no backslash before them.
fn terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut is_escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// The field, and the rest, which begins with the operator.
fn split_at_operator(term: &str) -> Option<(&str, &str)> {
    let equal = term.find('=')?;
    let operator = match term[..equal].strip_suffix('!') {
        Some(field) => field.len(),
        None => equal,
    };
    Some(term.split_at(operator))
}

/// A value without its backslashes; in it, `\`, `,` and `=` must have one before them.
fn unescaped(value: &str) -> Result<String, InvalidSelector> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        let is_escape = c == '\\';
        let meant = if is_escape { chars.next() } else { Some(c) };
        match meant {
            Some(c) if is_special(c) == is_escape => text.push(c),
            Some(_) | None => {
                return Err(InvalidSelector::Escape {
                    value: value.to_owned(),
                });
            }
        }
    }
    Ok(text)
}

fn is_special(c: char) -> bool {
    matches!(c, '\\' | ',' | '=')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(selector: &str) -> Option<bool> {
        let selector: FieldSelector = selector.parse().unwrap();
        selector.matches_fields(|field| match field {
            "metadata.name" => Some("coredns".to_owned()),
            "metadata.namespace" => Some("kube-system".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn all_requirements_must_be_met() {
        for (selector, expected) in [
            ("", true),
            ("metadata.name=coredns", true),
            (
                "metadata.name==coredns,metadata.namespace=kube-system",
                true,
            ),
            ("metadata.name!=coredns", false),
            ("metadata.namespace!=default", true),
            ("metadata.namespace=default,metadata.name=coredns", false),
        ] {
            assert_eq!(matches(selector), Some(expected), "{selector}");
        }
    }

    #[test]
    fn a_field_that_is_not_known_leaves_it_open() {
        assert_eq!(matches("spec.nodeName=edge-7"), None);
        assert_eq!(matches("metadata.name=other,status.phase!=Running"), None);
    }

    #[test]
    fn equal_selectors_are_written_the_same() {
        for (one, other) in [
            ("b=1,a==2", "a=2,b=1"),
            ("a=1,,a=1", "a=1"),
            (r"a=\,\=\\", r"a==\,\=\\"),
        ] {
            let [one, other] = [one, other].map(|text| text.parse::<FieldSelector>().unwrap());
            assert_eq!(one.to_string(), other.to_string());
        }
    }

    #[test]
    fn what_apimachinery_refuses_is_refused() {
        for selector in ["foo", "=", "a=b,foo", "a=b=c", "a=b!=c", r"a=\b", r"a=b\"] {
            assert!(selector.parse::<FieldSelector>().is_err(), "{selector}");
        }
    }

    proptest! {
        #[test]
        fn the_written_form_means_the_same(selector in r"([a-c.]|!?==?|,|\\[,=\\]|\\){0,12}") {
            if let Ok(parsed) = selector.parse::<FieldSelector>() {
                prop_assert_eq!(parsed.to_string().parse(), Ok(parsed));
            }
        }

        #[test]
        fn no_text_panics(selector in any::<String>()) {
            drop(selector.parse::<FieldSelector>());
        }
    }
}
