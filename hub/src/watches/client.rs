//! Who watches what.

use std::sync::Arc;
use std::time::Duration;

use crate::answers::local;
use crate::cache::{Identity, Snapshot};
use crate::hub::Hub;
use crate::identity::Proof;
use crate::reads::{Read, RepeatableRead};
use crate::wire::Encoding;

/// After a cut, all watches of a node are opened again within this time, its pods first.
const NODE_SPREAD: Duration = Duration::from_secs(10);
/// The same for watches of other clients, so that many nodes do not all ask at once.
const OTHERS_SPREAD: Duration = Duration::from_secs(30);

/// The client of a watch.
pub(super) struct Client {
    pub(super) hub: Arc<Hub>,
    pub(super) proof: Proof,
    pub(super) reader: Identity,
    pub(super) read: Read,
    /// To send the request again.
    pub(super) repeatable: RepeatableRead,
}

impl Client {
    pub(super) fn encoding(&self) -> Encoding {
        self.read.encoding()
    }

    /// The most that its watch waits after a cut.
    pub(super) fn spread(&self) -> Duration {
        let resource = &self.read.scope.representation.resource;
        match self.reader {
            Identity::Node if resource.group.is_empty() && resource.resource == "pods" => {
                Duration::ZERO
            }
            Identity::Node => NODE_SPREAD,
            Identity::ServiceAccount { .. } | Identity::User(_) => OTHERS_SPREAD,
        }
    }

    /// What it watches, as memory has it. `None`: that is not known, or not to be seen by it.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        local::snapshot(&self.hub.memory, &self.reader, &self.read)
    }
}
