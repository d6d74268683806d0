//! JSON on the wire. serde_json cannot give out the items of an array that arrives in pieces, so
//! the ends of values are found by a scanner of bytes; serde_json then checks each complete value.

pub(super) mod edit;
pub(super) mod events;
pub(super) mod list;
pub(super) mod object;
pub(super) mod row;
pub(super) mod scan;
pub(super) mod table;
pub(super) mod write;
