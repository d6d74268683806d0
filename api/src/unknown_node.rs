//! A name that no edge node has: what all programs say of it.

/// No edge node has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no edge node is named {name}: {}", advice(near))]
pub struct UnknownNode {
    /// The name.
    pub name: String,
    /// Names of nodes that may be meant.
    pub near: Vec<String>,
}

impl UnknownNode {
    /// A name that has nothing near it, or nothing known.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            near: Vec::new(),
        }
    }

    /// How to find the right name.
    pub fn advice(&self) -> String {
        advice(&self.near)
    }
}

fn advice(near: &[String]) -> String {
    let list = "`culvert nodes` lists all nodes";
    if near.is_empty() {
        return list.to_owned();
    }
    format!("did you mean {}? {list}", near.join(" or "))
}
