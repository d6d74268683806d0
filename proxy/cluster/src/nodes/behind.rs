//! Destinations behind a node, by labels of its Node. Pure.
//!
//! With the admission plugin NodeRestriction, no kubelet can write labels with this prefix. It does
//! not guard annotations.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use culvert_proxy_core::directory::{MAX_BEHIND, checked_behind};

use super::excerpt::excerpt;

/// Label with destinations behind the node, such as `192.168.1.20_502`: this one, and all that go
/// on with `-NAME`.
pub(super) const LABEL: &str = "node-restriction.kubernetes.io/culvert-behind";
/// The same as an annotation, such as `192.168.1.20:502,[fd00::20]:443`. It counts only with
/// --trust-node-annotations.
pub(super) const ANNOTATION: &str = "culvert.dev/behind";

/// Whether a label has destinations.
pub(super) fn is_label(label: &str) -> bool {
    label
        .strip_prefix(LABEL)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The destinations in these labels or annotations, by their names, and the problems of those that
/// are left out.
pub(super) fn destinations(given: &[(&str, &str)]) -> (BTreeSet<SocketAddr>, Vec<String>) {
    let mut destinations = BTreeSet::new();
    let mut problems = Vec::new();
    for (name, text) in given {
        // A label's value has neither commas nor colons.
        for entry in text.split([',', '-']) {
            let entry = entry.trim();
            if entry.is_empty() {
                continue;
            }
            match destination(entry) {
                Ok(_) if destinations.len() == MAX_BEHIND => {
                    problems.push(format!(
                        "more than {MAX_BEHIND} destinations behind the node"
                    ));
                    return (destinations, problems);
                }
                Ok(destination) => drop(destinations.insert(destination)),
                Err(problem) => problems.push(format!("{name}: {problem}")),
            }
        }
    }
    (destinations, problems)
}

/// The destinations in a label's value, and the problems of those that are left out.
#[cfg(any(test, fuzzing))]
pub(crate) fn in_label(value: &str) -> (BTreeSet<SocketAddr>, Vec<String>) {
    destinations(&[(LABEL, value)])
}

fn destination(entry: &str) -> Result<SocketAddr, String> {
    let given = entry.replace('_', ":").parse().map_err(|_| {
        format!(
            "{:?} is not a destination: write ADDRESS_PORT in a label, as in 192.168.1.20_502, with \
             - between two; ADDRESS:PORT in an annotation, with commas",
            excerpt(entry)
        )
    })?;
    checked_behind(given).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let (destinations, problems) = destinations(given);
        let texts = destinations.iter().map(ToString::to_string);
        (texts.collect(), problems)
    }

    #[test]
    fn labels_and_an_annotation_say_the_same_in_their_own_ways() {
        let (destinations, problems) = read(&[
            (LABEL, "192.168.1.20_502-192.168.1.21_80"),
            (
                "node-restriction.kubernetes.io/culvert-behind-door",
                "192.168.1.22_554",
            ),
        ]);
        assert_eq!(
            destinations,
            ["192.168.1.20:502", "192.168.1.21:80", "192.168.1.22:554"]
        );
        assert!(problems.is_empty(), "{problems:?}");
        let (destinations, _) = read(&[(ANNOTATION, "192.168.1.20:502, [fd00::20]:443")]);
        assert_eq!(destinations, ["192.168.1.20:502", "[fd00::20]:443"]);
        assert!(is_label(LABEL) && is_label(&format!("{LABEL}-door")));
        assert!(!is_label(&format!("{LABEL}s")) && !is_label(ANNOTATION));
    }

    #[test]
    fn a_mistake_names_the_label_and_the_others_are_read() {
        for (bad, told) in [
            ("192.168.1.20", "write ADDRESS_PORT in a label"),
            ("camera_80", "write ADDRESS_PORT in a label"),
            ("192.168.1.20_0", "0 is not a port"),
            (
                "127.0.0.1_80",
                "is a loopback address, which is behind no node",
            ),
        ] {
            let text = format!("192.168.1.21_80-{bad}");
            let (destinations, problems) = read(&[(LABEL, &text)]);
            assert_eq!(destinations, ["192.168.1.21:80"]);
            assert!(
                problems[0].starts_with(LABEL) && problems[0].contains(told),
                "{problems:?}"
            );
        }
        let many: Vec<String> = (1..=65)
            .map(|port| format!("192.168.1.20_{port}"))
            .collect();
        let (destinations, problems) = read(&[(LABEL, &many.join("-"))]);
        assert_eq!((destinations.len(), problems.len()), (MAX_BEHIND, 1));
    }
}
