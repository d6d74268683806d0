//! Listening sockets, and the limits of those who have not said who they are.

pub(crate) mod listen;
pub(crate) mod local_grpc;
pub(crate) mod local_socket;
pub(crate) mod proxy_protocol;
pub(crate) mod strangers;
