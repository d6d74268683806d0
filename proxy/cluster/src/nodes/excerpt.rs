//! What a problem repeats of a Node's text.

/// The length at which a label or an annotation is cut in logs.
const MAX_CHARS: usize = 100;

pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(MAX_CHARS).collect()
}
