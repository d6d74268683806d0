//! Which nodes may be meant by a name that no node has. Pure.

use culvert_api::UnknownNode;

/// Names that may be meant.
const MAX_NAMES: usize = 3;
/// Letters that may differ: one that is wrong, missing or too much, or two that changed places.
const MAX_TYPOS: usize = 2;

/// The error for a name that no node has.
pub(crate) fn unknown_node<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> UnknownNode {
    let near = near_names(name, known);
    UnknownNode {
        name: name.to_owned(),
        near: near.into_iter().map(str::to_owned).collect(),
    }
}

/// The nearest names, the nearest first.
fn near_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut near = Vec::new();
    for known in known {
        let distance = strsim::osa_distance(name, known);
        // In a short name, that many typos would change most letters.
        if distance <= MAX_TYPOS && distance < known.chars().count() / 2 {
            near.push((distance, known));
        }
    }
    near.sort_unstable();
    near.dedup();
    near.truncate(MAX_NAMES);
    near.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_proposed_and_far_ones_are_not() {
        let known = ["edge-1", "edge-12", "press", "edge-1", "db"];
        let text = unknown_node("egde-1", known).to_string();
        assert!(text.contains("edge-1 or edge-12"), "{text}");
        assert!(!text.contains("press"), "{text}");
        assert!(!unknown_node("ab", known).advice().contains("mean"));
    }

    #[test]
    fn the_names_are_bounded_and_the_list_is_always_named() {
        let names: Vec<String> = (0..9).map(|number| format!("edge-{number}")).collect();
        let text = unknown_node("edge-x", names.iter().map(String::as_str)).advice();
        assert_eq!(text.matches("edge-").count(), MAX_NAMES, "{text}");
        assert!(text.contains("`culvert nodes`"), "{text}");
        let text = unknown_node("edge-x", []).advice();
        assert!(text.contains("`culvert nodes`"), "{text}");
    }
}
