//! The data path, as far as it is the same for all clients: the sockets that accept connections, the
//! choice of a tunnel for each, and the open streams. How clients say where they want to go is in
//! `culvert-proxy-clients`.
#![forbid(unsafe_code)]

pub mod copies;
pub mod direct;
pub mod ended;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod history;
pub mod limits;
pub mod live;
pub mod moves;
pub mod peers;
pub mod rank;
pub mod recent;
pub mod registry;
mod rerouted;
pub mod route;
pub mod routed;
pub mod sockets;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod view;
