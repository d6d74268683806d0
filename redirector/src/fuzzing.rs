//! Entry points of the fuzz targets (`fuzz/`): the parsers of DNS queries and of the saved
//! directory.

use culvert_daemon::chain;

use crate::directory::Directory;
pub use crate::dns::fuzzing::{Answered, Dns};
use crate::plan::{Freshness, plan};

/// Reads a saved directory, makes its plan, and returns the directory as it would be saved again.
///
/// # Errors
/// Why the redirector would ignore the file.
pub fn saved_directory(text: &[u8]) -> Result<Vec<u8>, String> {
    rewritten(text).map_err(|error| chain(&error))
}

fn rewritten(text: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let directory: Directory = serde_json::from_slice(text)?;
    for freshness in [Freshness::Live, Freshness::Stale] {
        drop(plan(&directory, freshness));
    }
    drop(directory.owners());
    serde_json::to_vec(&directory)
}
