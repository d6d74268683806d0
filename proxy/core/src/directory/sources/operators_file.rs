//! The operator's file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use culvert_api::NodeName;

use super::{Refreshed, Sources};
use crate::directory::DirectoryError;
use crate::directory::file::{self, FileError};
use crate::directory::node::NodeSpec;

/// The last valid version of the operator's file. It is used if the file is broken when the proxy
/// starts.
const LAST_GOOD: &str = "directory-last-good.toml";

#[derive(Debug)]
pub(super) struct DirectoryFile {
    pub(super) path: PathBuf,
    /// The text that was last read, to notice changes.
    text: Option<String>,
    pub(super) nodes: BTreeMap<NodeName, NodeSpec>,
    /// Whether any version of it was valid.
    was_loaded: bool,
    problem: Option<String>,
}

impl DirectoryFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            text: None,
            nodes: BTreeMap::new(),
            was_loaded: false,
            problem: None,
        }
    }
}

impl Sources {
    pub(in crate::directory) fn file_problem(&self) -> Option<String> {
        self.file.as_ref()?.problem.clone()
    }

    /// Whether there is a file, but no version of it was valid.
    pub(in crate::directory) fn lacks_file(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.was_loaded)
    }

    /// Reads the file if its text has changed, and sets the host's addresses.
    pub(in crate::directory) fn refresh(&mut self, host: BTreeSet<IpAddr>) -> Refreshed {
        let hosts = if self.protected.host == host {
            Refreshed::Unchanged
        } else {
            Refreshed::Changed
        };
        self.protected.host = host;
        let Some(file) = &mut self.file else {
            return hosts;
        };
        let read = file::read(&file.path);
        if let Ok(text) = &read
            && file.text.as_ref() == Some(text)
        {
            file.problem = None;
            return hosts;
        }
        let path = file.path.clone();
        let outcome = match read {
            Ok(text) => self.apply(text, &path),
            Err(error) => Err(error.into()),
        };
        self.report(outcome);
        Refreshed::Changed
    }

    fn apply(&mut self, text: String, path: &Path) -> Result<(), DirectoryError> {
        let nodes = file::parse(&text, path)?;
        self.commit(self.stored.nodes.clone(), nodes)?;
        self.state.write_text(LAST_GOOD, text.as_bytes())?;
        if let Some(file) = &mut self.file {
            file.text = Some(text);
        }
        Ok(())
    }

    fn report(&mut self, outcome: Result<(), DirectoryError>) {
        let Some(file) = &mut self.file else { return };
        let problem = outcome.err().map(|error| culvert_daemon::chain(&error));
        match &problem {
            None => {
                file.was_loaded = true;
                tracing::info!(
                    file = %file.path.display(),
                    nodes = file.nodes.len(),
                    "directory file read"
                );
            }
            Some(problem) if file.problem.as_ref() != Some(problem) => {
                tracing::error!(
                    reason = problem,
                    nodes = file.nodes.len(),
                    "directory file not used, keeping its last good nodes"
                );
            }
            Some(_) => {}
        }
        file.problem = problem;
    }

    pub(super) fn load_last_good(&mut self) {
        let Some(file) = &mut self.file else { return };
        let copy = self.state.join(LAST_GOOD);
        let nodes = file::read(&copy).and_then(|text| file::parse(&text, &copy));
        match nodes {
            Ok(nodes) => {
                file.nodes = nodes;
                file.was_loaded = true;
            }
            Err(FileError::Read { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                reason = culvert_daemon::chain(&error),
                "last good directory file not usable"
            ),
        }
    }
}
