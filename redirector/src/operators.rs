//! What operators use: `status`, `explain`, `uninstall`, and the pages of the admin server.

pub(crate) mod debug;
pub(crate) mod explain;
pub(crate) mod installed;
mod marks;
pub(crate) mod status;
pub(crate) mod uninstall;
