//! Label selectors.

use std::collections::BTreeSet;
use std::fmt;

use crate::wire::Labels;

/// Which labels an object must have. Without requirements it selects all.
///
/// Requirements are sorted, and written in one way where there are several: `x in (a)` is `x=a`,
/// and `x==a` too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LabelSelector {
    requirements: BTreeSet<Requirement>,
}

/// What one label must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) condition: Condition,
}

/// What the value of a label must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Condition {
    In(BTreeSet<String>),
    /// Met by objects without the label, too.
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    /// Met by no object whose value is not an integer.
    Greater(i64),
    /// Met by no object whose value is not an integer.
    Less(i64),
}

impl LabelSelector {
    pub(super) fn of(requirements: Vec<Requirement>) -> Self {
        Self {
            requirements: requirements.into_iter().collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key).map(String::as_str);
            requirement.condition.is_met_by(value)
        })
    }
}

impl Condition {
    fn is_met_by(&self, value: Option<&str>) -> bool {
        let Some(value) = value else {
            return matches!(self, Self::NotIn(_) | Self::DoesNotExist);
        };
        match self {
            Self::In(values) => values.contains(value),
            Self::NotIn(values) => !values.contains(value),
            Self::Exists => true,
            Self::DoesNotExist => false,
            Self::Greater(bound) => matches!(value.parse::<i64>(), Ok(value) if value > *bound),
            Self::Less(bound) => matches!(value.parse::<i64>(), Ok(value) if value < *bound),
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: Vec<_> = self
            .requirements
            .iter()
            .map(Requirement::to_string)
            .collect();
        f.write_str(&written.join(","))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.condition {
            Condition::In(values) if values.len() == 1 => write!(f, "{key}={}", joined(values)),
            Condition::In(values) => write!(f, "{key} in ({})", joined(values)),
            Condition::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", joined(values)),
            Condition::NotIn(values) => write!(f, "{key} notin ({})", joined(values)),
            Condition::Exists => write!(f, "{key}"),
            Condition::DoesNotExist => write!(f, "!{key}"),
            Condition::Greater(bound) => write!(f, "{key}>{bound}"),
            Condition::Less(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

fn joined(values: &BTreeSet<String>) -> String {
    let values: Vec<_> = values.iter().map(String::as_str).collect();
    values.join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    fn written(selector: &str) -> String {
        selector.parse::<LabelSelector>().unwrap().to_string()
    }

    fn matches(selector: &str, pairs: &[(&str, &str)]) -> bool {
        let selector: LabelSelector = selector.parse().unwrap();
        selector.matches(&labels(pairs))
    }

    /// The cases of apimachinery's `TestSelectorParse` and `TestSetSelectorParser`.
    #[test]
    fn what_apimachinery_accepts_is_accepted_and_written_in_one_way() {
        for (selector, expected) in [
            ("x=a,y=b,z=c", "x=a,y=b,z=c"),
            ("", ""),
            ("x!=a,y=b", "x!=a,y=b"),
            ("x=", "x="),
            ("x= ", "x="),
            ("x=,z= ", "x=,z="),
            ("x= ,z= ", "x=,z="),
            ("!x", "!x"),
            ("x>1", "x>1"),
            ("x>1,z<5", "x>1,z<5"),
            ("\rx", "x"),
            (
                "this-is-a-dns.domain.com/key-with-dash",
                "this-is-a-dns.domain.com/key-with-dash",
            ),
            (
                "a.dns.domain.com/key-with-dash in (so,what)",
                "a.dns.domain.com/key-with-dash in (so,what)",
            ),
            (
                "0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)",
                "0.1.2.domain/99 notin (10.10.100.1,tick.tack.clock)",
            ),
            ("foo  in\t (abc)", "foo=abc"),
            ("x notin\n (abc)", "x!=abc"),
            ("x  notin\t\t\t(abc,def)", "x notin (abc,def)"),
            ("x in (abc,)", "x in (,abc)"),
            ("x in ()", "x="),
            (
                "x notin (abc,,def),bar,z in (),w",
                "bar,w,x notin (,abc,def),z=",
            ),
            ("x,y in (a)", "x,y=a"),
            ("x==a", "x=a"),
            ("x=a,y!=b,z in (h,i,j)", "x=a,y!=b,z in (h,i,j)"),
            ("x notin ( )", "x!="),
            ("x notin (, a)", "x notin (,a)"),
            ("a ", "a"),
            ("a in (x,y,notin, z,in)", "a in (in,notin,x,y,z)"),
            ("notin=in", "notin=in"),
            ("1234 in (bar)", "1234=bar"),
        ] {
            assert_eq!(written(selector), expected, "{selector:?}");
        }
    }

    #[test]
    fn what_apimachinery_refuses_is_refused() {
        let long_key = "a".repeat(254);
        for selector in [
            "x=a||y=b",
            "x==a==b",
            "!x=a",
            "x<a",
            "foo>bar",
            "x,,y",
            ",x,y",
            "x nott in (y)",
            "a in (xyz),",
            "a in (xyz)b",
            "a in (xyz abc)",
            "a notin(",
            "a (",
            "(",
            "x=a,",
            "=a",
            "-x=a",
            "x=-a",
            "/x=a",
            "UPPER.domain/x",
            &long_key,
        ] {
            assert!(selector.parse::<LabelSelector>().is_err(), "{selector:?}");
        }
    }

    /// The cases of apimachinery's `TestSelectorMatches` and `TestRequirementSelectorMatching`.
    #[test]
    fn labels_match_as_in_apimachinery() {
        let both = &[("foo", "bar"), ("baz", "blah")][..];
        for (selector, pairs) in [
            ("", &[("x", "y")][..]),
            ("x=y", &[("x", "y")]),
            ("x=y,z=w", &[("x", "y"), ("z", "w")]),
            ("x!=y,z!=w", &[("x", "z"), ("z", "a")]),
            ("notin=in", &[("notin", "in")]),
            ("x", &[("x", "z")]),
            ("!x", &[("y", "z")]),
            ("x>1", &[("x", "2")]),
            ("x<1", &[("x", "0")]),
            ("foo=bar", both),
            ("baz=blah", both),
            ("foo=bar,baz=blah", both),
            ("x in (foo),y notin (alpha)", &[("x", "foo"), ("y", "baz")]),
            ("x notin (),y", &[("y", "")]),
            ("!x,y", &[("y", "")]),
        ] {
            assert!(matches(selector, pairs), "{selector} {pairs:?}");
        }
        for (selector, pairs) in [
            ("x=z", &[][..]),
            ("x=y", &[("x", "z")]),
            ("x=y,z=w", &[("x", "w"), ("z", "w")]),
            ("x!=y,z!=w", &[("x", "z"), ("z", "w")]),
            ("x", &[("y", "z")]),
            ("!x", &[("x", "z")]),
            ("x>1", &[("x", "0")]),
            ("x<1", &[("x", "2")]),
            ("foo=blah", both),
            ("baz=bar", both),
            ("foo=bar,foobar=bar,baz=blah", both),
            ("x in (foo),y in (alpha)", &[("x", "foo"), ("y", "baz")]),
            ("x notin (),!y", &[("y", "")]),
            ("x in ()", &[("y", "baz")]),
            ("z>1", &[("z", "v2")]),
        ] {
            assert!(!matches(selector, pairs), "{selector} {pairs:?}");
        }
    }

    #[test]
    fn not_equal_and_not_in_match_objects_without_the_label() {
        assert!(matches("x!=a", &[]));
        assert!(matches("x notin (a,b)", &[]));
    }

    #[test]
    fn equal_selectors_are_written_the_same() {
        for (one, other) in [
            ("x=a,a=x", "a=x,x=a"),
            ("x in (b,a)", "x in (a,b,a)"),
            ("x==a", "x in (a)"),
            ("x!=a", "x notin ( a )"),
            ("x,x", "x"),
        ] {
            assert_eq!(written(one), written(other), "{one} and {other}");
        }
    }

    proptest! {
        #[test]
        fn the_written_form_means_the_same(selector in "([xy!]|!=|==?|[<>]|[a-c0-9]| in | notin |[(,)]){0,12}") {
            if let Ok(parsed) = selector.parse::<LabelSelector>() {
                prop_assert_eq!(parsed.to_string().parse(), Ok(parsed));
            }
        }

        #[test]
        fn no_text_panics(selector in any::<String>()) {
            drop(selector.parse::<LabelSelector>());
        }
    }
}
