//! What people ask: `status`, `explain`, and the pages of the admin server.

pub(crate) mod debug;
pub(crate) mod explain;
pub(crate) mod installed;
pub(crate) mod status;
