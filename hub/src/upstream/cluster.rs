//! Whether the API server at the other end of a new connection is the one of this node's cluster, and
//! whether that was restored from a backup. A wrong backend of a load balancer, or an empty etcd, would
//! tell kubelet that all its pods were deleted.
//!
//! A cluster is known by the uid of its Service `default/kubernetes`, which nodes may list, and by that
//! of the Node, should the Service have been made again. An API server that refuses these questions
//! (401, 403) is not suspected. One that has no time for them (429, 5xx), as while it starts, is not
//! believed until it answers.

use std::path::PathBuf;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// A list of one, without a resource version: etcd itself answers it, so its version is the newest.
pub(super) const SERVICE: &str =
    "/api/v1/namespaces/default/services?fieldSelector=metadata.name%3Dkubernetes";
const NODES: &str = "/api/v1/nodes?fieldSelector=metadata.name%3D";
/// Both questions are about metadata only: a Node has long lists of images.
pub(super) const ACCEPT: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The resource versions that the memory knows.
pub(crate) trait KnownVersions: Send + Sync {
    /// The newest one.
    fn newest(&self) -> u64;

    /// Takes note of the newest version of the cluster. `known` was the newest one here when the
    /// question was asked: watches bring later ones while the answer is on its way.
    fn observe(&self, version: u64, known: u64);
}

/// The cluster that this node belongs to.
pub(crate) struct ClusterIdentity {
    file: PathBuf,
    versions: Box<dyn KnownVersions>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Option<KnownCluster>,
    /// What answered last was another cluster.
    is_other: bool,
}

/// Its uids, as they are on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KnownCluster {
    service: String,
    node: Option<String>,
}

/// What an API server said to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClusterAnswer {
    /// The uid of the object, if it exists, and the newest resource version.
    Object { uid: Option<String>, version: u64 },
    /// It has no time, or is not ready: it will answer.
    Later,
    /// Not answered, or not understood.
    Nothing,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    SameCluster,
    OtherCluster,
    /// The Node decides.
    AskForNode,
}

#[derive(Deserialize)]
struct List {
    kind: String,
    metadata: ListMetadata,
    /// `null` if there is none, as Go writes a list that was never begun.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
struct ItemMetadata {
    #[serde(default)]
    uid: String,
}

impl ClusterAnswer {
    /// Reads an answer with status 200.
    pub(super) fn read(body: &[u8]) -> Self {
        let Ok(list) = serde_json::from_slice::<List>(body) else {
            return Self::Nothing;
        };
        let items = list.items.unwrap_or_default();
        if !list.kind.ends_with("List") || items.len() > 1 {
            return Self::Nothing;
        }
        let uid = items.into_iter().next().map(|item| item.metadata.uid);
        Self::Object {
            uid: uid.filter(|uid| !uid.is_empty()),
            version: list.metadata.resource_version.parse().unwrap_or(0),
        }
    }
}

impl ClusterIdentity {
    /// `file` has what an earlier process knew.
    pub(crate) fn new(file: PathBuf, versions: Box<dyn KnownVersions>) -> Self {
        let known = std::fs::read(&file).ok();
        let known = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Self {
            file,
            versions,
            state: Mutex::new(State {
                known,
                is_other: false,
            }),
        }
    }

    /// Whether what answered last was another cluster.
    pub(crate) fn is_other(&self) -> bool {
        self.state.lock().is_other
    }

    /// Whether the cluster of this node is known, so that another one can be told from it.
    pub(super) fn is_known(&self) -> bool {
        self.state.lock().known.is_some()
    }

    /// The newest version that is known before a question.
    pub(super) fn newest_known_version(&self) -> u64 {
        self.versions.newest()
    }

    /// The question about the node, if it has a name.
    pub(super) fn question_about_node(node: Option<&str>) -> Option<String> {
        Some(format!("{NODES}{}", node?))
    }

    /// Judges by the Service.
    pub(super) fn judge_service(&self, answer: &ClusterAnswer) -> Verdict {
        let ClusterAnswer::Object { uid, .. } = answer else {
            return Verdict::SameCluster;
        };
        let state = self.state.lock();
        let Some(known) = &state.known else {
            return Verdict::AskForNode;
        };
        if uid.as_ref() == Some(&known.service) && known.node.is_some() {
            return Verdict::SameCluster;
        }
        Verdict::AskForNode
    }

    /// Judges by both, and remembers what is new of the same cluster.
    pub(super) fn judge(&self, service: &ClusterAnswer, node: &ClusterAnswer) -> Verdict {
        let ClusterAnswer::Object { uid: service, .. } = service else {
            return Verdict::SameCluster;
        };
        let node = match node {
            ClusterAnswer::Object { uid, .. } => uid.clone(),
            ClusterAnswer::Later | ClusterAnswer::Nothing => None,
        };
        let mut state = self.state.lock();
        let is_same = match &state.known {
            None => service.is_some(),
            Some(known) if *service == Some(known.service.clone()) => true,
            Some(known) => node.is_some() && node == known.node,
        };
        if !is_same {
            // No Service, and no cluster known yet: this API server has just been installed.
            return match state.known {
                Some(_) => Verdict::OtherCluster,
                None => Verdict::SameCluster,
            };
        }
        if let Some(service) = service {
            let known = state.known.take().unwrap_or_default();
            let now = KnownCluster {
                service: service.clone(),
                node: node.or(known.node),
            };
            self.save(&now);
            state.known = Some(now);
        }
        Verdict::SameCluster
    }

    /// Remembers a verdict. If it is this node's cluster, reports its newest version. `known` is the
    /// newest one that was known before the question.
    pub(super) fn settle(&self, verdict: Verdict, service: &ClusterAnswer, known: u64) {
        let is_other = verdict == Verdict::OtherCluster;
        let was_other = std::mem::replace(&mut self.state.lock().is_other, is_other);
        if is_other && !was_other {
            tracing::error!(
                "another cluster answers at the address of the API server: its answers are not believed"
            );
        }
        if let ClusterAnswer::Object { version, .. } = service
            && verdict == Verdict::SameCluster
        {
            self.versions.observe(*version, known);
        }
    }

    fn save(&self, known: &KnownCluster) {
        let Ok(bytes) = serde_json::to_vec(known) else {
            return;
        };
        if let Err(error) = culvert_daemon::write_atomic(&self.file, &bytes, 0o600) {
            tracing::warn!(%error, file = %self.file.display(), "the uid of the cluster is not on disk");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{AskForNode, OtherCluster, SameCluster};

    struct NoVersions;

    impl KnownVersions for NoVersions {
        fn newest(&self) -> u64 {
            0
        }

        fn observe(&self, _version: u64, _known: u64) {}
    }

    /// Of a process that keeps what it knows in this folder.
    fn started(directory: &tempfile::TempDir) -> ClusterIdentity {
        ClusterIdentity::new(directory.path().join("uids"), Box::new(NoVersions))
    }

    fn object(uid: &str) -> ClusterAnswer {
        ClusterAnswer::Object {
            uid: (!uid.is_empty()).then(|| uid.to_owned()),
            version: 7,
        }
    }

    fn judged(identity: &ClusterIdentity, service: &str, node: &str) -> Verdict {
        let service = object(service);
        let node = object(node);
        match identity.judge_service(&service) {
            AskForNode => identity.judge(&service, &node),
            verdict @ (SameCluster | OtherCluster) => verdict,
        }
    }

    #[test]
    fn a_cluster_is_known_by_its_service_or_its_node_over_a_restart_too() {
        let directory = tempfile::tempdir().unwrap();
        let identity = started(&directory);
        assert_eq!(
            judged(&identity, "", ""),
            SameCluster,
            "nothing is known yet"
        );
        assert_eq!(judged(&identity, "s-1", "n-1"), SameCluster);
        let identity = started(&directory);
        assert_eq!(judged(&identity, "s-1", ""), SameCluster);
        assert_eq!(judged(&identity, "s-2", "n-2"), OtherCluster);
        assert_eq!(judged(&identity, "", ""), OtherCluster, "it is empty");
        assert_eq!(
            judged(&identity, "s-2", "n-1"),
            SameCluster,
            "it was made again"
        );
        assert_eq!(judged(&started(&directory), "s-2", ""), SameCluster);
        assert_eq!(identity.judge_service(&ClusterAnswer::Nothing), SameCluster);
    }

    #[test]
    fn only_a_list_of_one_is_understood() {
        let list = r#"{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"uid":"u"}}]}"#;
        assert_eq!(ClusterAnswer::read(list.as_bytes()), object("u"));
        for items in ["[]", "null"] {
            let empty = format!(
                r#"{{"kind":"PartialObjectMetadataList","metadata":{{"resourceVersion":"7"}},"items":{items}}}"#
            );
            assert_eq!(ClusterAnswer::read(empty.as_bytes()), object(""));
        }
        for other in ["", "{}", r#"{"kind":"Status","metadata":{}}"#] {
            assert_eq!(
                ClusterAnswer::read(other.as_bytes()),
                ClusterAnswer::Nothing,
                "{other}"
            );
        }
    }
}
