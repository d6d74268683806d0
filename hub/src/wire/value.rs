//! The value of a single field.

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    /// Anything else, as it is written: JSON, or the bytes of a message.
    Raw(Vec<u8>),
}
