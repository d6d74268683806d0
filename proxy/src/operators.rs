//! What people ask: the command line, the control socket, `explain`, `check` and `/debug`.

pub(crate) mod check;
pub(crate) mod cli;
pub(crate) mod control;
pub(crate) mod debug;
pub(crate) mod explain;
pub(crate) mod scraped;
