//! What tests need of this crate, those of the other crates of the proxy too: for these there is the
//! feature `testing`, for the helpers read and write what is private here.

use std::path::{Path, PathBuf};

use culvert_api::NodeName;
use culvert_daemon::Listeners;

use crate::directory::{
    self, ClusterOwn, ClusterWriter, Directory, DirectoryConfig, Editor, Handles, NodesFrom,
};
use crate::metrics::{Metrics, Outcome, SpanOutcome};
use crate::state::{StateDir, StateError};

impl StateDir {
    /// Creates the directory with mode 0700 if it is missing, and locks it.
    ///
    /// # Errors
    ///
    /// It cannot be made, or another process has its lock.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        Self::open_or_inherit(path, &Listeners::default())
    }
}

impl DirectoryConfig {
    /// A directory of operators in this state directory, without a file.
    #[must_use]
    pub fn for_tests(state: StateDir) -> Self {
        Self {
            state,
            file: None,
            protect: Vec::new(),
            edge_ranges: Vec::new(),
            direct: Vec::new(),
            given: ClusterOwn::default(),
            vip4_range: "198.18.0.0/15".parse().expect("it is a range"),
            vip6_range: Some("fd00:c::/64".parse().expect("it is a range")),
            zone: "edge.internal".parse().expect("it is a zone"),
            nodes_from: NodesFrom::Operators,
        }
    }
}

impl Directory {
    /// A directory with these nodes, without addresses.
    ///
    /// # Panics
    ///
    /// It cannot be made there.
    #[must_use]
    pub fn for_tests(state_dir: &Path, nodes: &[NodeName]) -> Self {
        let state = StateDir::open(state_dir).expect("open the state directory");
        let Handles {
            directory, editor, ..
        } = directory::open(&DirectoryConfig::for_tests(state)).expect("open the directory");
        for node in nodes {
            editor
                .put(node, Vec::new(), Vec::new())
                .expect("put a node");
        }
        directory
    }

    /// Another handle of it.
    #[must_use]
    pub fn editor(&self) -> Editor {
        Editor::new(self.clone())
    }

    /// Another handle of it.
    #[must_use]
    pub fn cluster_writer(&self) -> ClusterWriter {
        ClusterWriter::new(self.clone())
    }
}

impl Metrics {
    /// How many spans had this outcome so far.
    #[must_use]
    pub fn spans_so_far(&self, outcome: SpanOutcome) -> u64 {
        let outcome = outcome.into();
        self.spans.get_or_create(&Outcome { outcome }).get()
    }
}

/// Makes writes of one file of a directory fail, as on a full disk, until it is dropped. The file is
/// read as before.
#[derive(Debug)]
pub struct FullDisk(PathBuf);

impl FullDisk {
    /// `file` is the name of the file in `directory`.
    ///
    /// # Panics
    ///
    /// The directory cannot be written to, or the file's disk is full already.
    #[must_use]
    pub fn of(directory: &Path, file: &str) -> Self {
        let in_the_way = directory.join(format!(".{file}.new"));
        std::fs::create_dir(&in_the_way).expect("nothing is in the way yet");
        Self(in_the_way)
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).expect("it is there and empty");
    }
}
