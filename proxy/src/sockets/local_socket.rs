//! The proxy's Unix sockets.

pub(crate) use culvert_daemon::{LocalSocket, SocketAccess as Access};
