//! What the cluster last said, on disk: a proxy that starts without an API server begins with it.
//! It is in force whether or not the disk takes it, and a disk that does not is asked again.

use std::time::Duration;

use culvert_daemon::{Problem, chain};
use culvert_proxy_core::state::{StateDir, StateFile};
use serde::Serialize;

/// The pause after a failed write.
const REWRITE: Duration = Duration::from_secs(10);

/// One such file.
#[derive(Debug)]
pub(super) struct LastSeen<T> {
    state: StateDir,
    file: StateFile,
    unwritten: Option<T>,
    problem: Problem,
}

impl<T: Serialize + Clone + Send + 'static> LastSeen<T> {
    /// The file in that directory. What it has now is not read.
    pub(super) fn new(state: StateDir, file: StateFile) -> Self {
        Self {
            state,
            file,
            unwritten: None,
            problem: Problem::default(),
        }
    }

    /// Replaces the content. A failure is logged, and [`Self::write_again`] takes over.
    pub(super) async fn write(&mut self, content: T) {
        self.unwritten = Some(content);
        self.try_write().await;
    }

    /// Writes what could not be written, after a pause; waits for ever if there is nothing. Nothing
    /// is lost if it is cancelled.
    pub(super) async fn write_again(&mut self) {
        if self.unwritten.is_none() {
            return std::future::pending().await;
        }
        tokio::time::sleep(REWRITE).await;
        self.try_write().await;
    }

    async fn try_write(&mut self) {
        let Some(content) = self.unwritten.clone() else {
            return;
        };
        let state = self.state.clone();
        let file = self.file;
        let written = tokio::task::spawn_blocking(move || state.write(file, &content)).await;
        let problem = match written {
            Ok(Ok(())) => {
                self.unwritten = None;
                None
            }
            Ok(Err(error)) => Some(chain(&error)),
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = self.problem.record(problem) {
            tracing::error!(
                file = self.file.name,
                reason,
                "in force, but not on disk; trying again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: StateFile = StateFile {
        name: "ports.json",
        what: "ports",
    };

    #[tokio::test]
    async fn what_a_full_disk_does_not_take_is_written_when_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let mut last = LastSeen::new(state.clone(), FILE);
        last.write(vec![1]).await;
        let in_the_way = folder.path().join(".ports.json.new");
        std::fs::create_dir(&in_the_way).unwrap();
        last.write(vec![2]).await;
        last.try_write().await;
        assert_eq!(state.read::<Vec<u8>>(FILE).unwrap(), Some(vec![1]));
        std::fs::remove_dir(&in_the_way).unwrap();
        last.try_write().await;
        assert_eq!(state.read::<Vec<u8>>(FILE).unwrap(), Some(vec![2]));
        let idle = futures_util::poll!(std::pin::pin!(last.write_again()));
        assert!(idle.is_pending(), "nothing is left to write");
    }
}
