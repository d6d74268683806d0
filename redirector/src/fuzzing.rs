//! What the fuzz targets (`fuzz/`) call: the readers of DNS queries and of the saved directory.

use culvert_daemon::chain;

use crate::directory::Directory;
pub use crate::dns::fuzzing::{Answered, Dns};
use crate::plan::{Freshness, plan};

/// The saved directory as it would be saved again, after what it steers was worked out.
///
/// # Errors
/// Why it is ignored.
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
