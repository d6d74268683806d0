//! Texts that may be absent.

/// A text that is empty where there is none, as in the messages of `proto/`.
pub fn non_empty(text: &str) -> Option<String> {
    if text.is_empty() {
        None
    } else {
        Some(text.to_owned())
    }
}
