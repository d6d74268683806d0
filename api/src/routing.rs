use serde::{Deserialize, Serialize};

use crate::proto::directory as proto;

/// How connections to one of a node's addresses are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// Steered, and relayed to the node.
    Routed,
    /// Steered, and refused by the proxy: several nodes have the address or claim it.
    Shared,
    /// Not steered: the cloud uses the address itself.
    Protected,
}

impl From<Routing> for proto::Routing {
    fn from(routing: Routing) -> Self {
        match routing {
            Routing::Routed => Self::Routed,
            Routing::Shared => Self::Shared,
            Routing::Protected => Self::Protected,
        }
    }
}

impl From<proto::Routing> for Routing {
    /// A value that this version does not know is `Protected`: the node can still be reached by
    /// name.
    fn from(routing: proto::Routing) -> Self {
        match routing {
            proto::Routing::Routed => Self::Routed,
            proto::Routing::Shared => Self::Shared,
            proto::Routing::Protected | proto::Routing::Unspecified => Self::Protected,
        }
    }
}
