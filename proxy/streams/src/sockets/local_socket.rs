//! The proxy's Unix sockets.

pub use culvert_daemon::{LocalSocket, SocketAccess as Access};
