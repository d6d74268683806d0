//! Listening sockets, and the limits of those who have not said who they are.

pub mod listen;
pub mod local_grpc;
pub mod local_socket;
pub mod proxy_protocol;
pub mod strangers;
