//! Percent encoding of paths and queries.
