//! What is said of a name that no node has. Pure.

/// Names that may be meant.
const MOST_NAMES: usize = 3;
/// Letters that may differ: one that is wrong, missing or too much, or two that changed places.
const MOST_TYPOS: usize = 2;

/// That no proxy knows a node of this name, which of the known names may be meant, and how to list
/// them.
pub(crate) fn unknown_node<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    format!(
        "no proxy knows a node named {name}: {}",
        advice(name, known)
    )
}

/// Which of the known names may be meant, and how to list them.
pub(crate) fn advice<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let list = "`culvert nodes` lists all nodes";
    let near = near_names(name, known);
    if near.is_empty() {
        return list.to_owned();
    }
    format!("did you mean {}? {list}", near.join(" or "))
}

/// The nearest names, the nearest first.
fn near_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut near = Vec::new();
    for known in known {
        let distance = strsim::osa_distance(name, known);
        // Of a short name most letters would be other ones.
        if distance <= MOST_TYPOS && distance < known.chars().count() / 2 {
            near.push((distance, known));
        }
    }
    near.sort_unstable();
    near.dedup();
    near.truncate(MOST_NAMES);
    near.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_proposed_and_far_ones_are_not() {
        let known = ["edge-1", "edge-12", "press", "edge-1", "db"];
        let text = unknown_node("egde-1", known);
        assert!(text.contains("edge-1 or edge-12"), "{text}");
        assert!(!text.contains("press"), "{text}");
        assert!(!advice("ab", known).contains("mean"));
    }

    #[test]
    fn the_names_are_bounded_and_the_list_is_always_named() {
        let names: Vec<String> = (0..9).map(|number| format!("edge-{number}")).collect();
        let text = advice("edge-x", names.iter().map(String::as_str));
        assert_eq!(text.matches("edge-").count(), MOST_NAMES, "{text}");
        assert!(text.contains("`culvert nodes`"), "{text}");
        assert!(advice("edge-x", []).contains("`culvert nodes`"));
    }
}
