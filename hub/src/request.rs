//! What a request asks for, out of its method, path, query and `Accept` header.

pub(crate) mod accept;
pub(crate) mod discovery;
pub(crate) mod info;
pub(crate) mod options;
pub(crate) mod percent;
pub(crate) mod selector;
