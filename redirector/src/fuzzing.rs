//! What the fuzz targets (`fuzz/`) call: the readers of DNS queries and of the saved directory.

use culvert_daemon::chain;

use crate::directory;
pub use crate::dns::fuzzing::{Answered, Dns};

/// The saved directory as it would be saved again, after what it steers was worked out.
///
/// # Errors
/// Why it is ignored.
pub fn saved_directory(text: &[u8]) -> Result<Vec<u8>, String> {
    directory::rewritten(text).map_err(|error| chain(&error))
}
