//! The functions that the fuzz targets (`fuzz/`) call: the parsers of what clients and operators
//! write. The result is text, so that a target can parse it again.

use culvert_daemon::chain;

use crate::directory::{self, Destination};
use crate::forward::Forward;

/// A destination in its displayed form.
///
/// # Errors
///
/// The reason why it is not one.
pub fn destination(text: &str) -> Result<String, String> {
    text.parse::<Destination>()
        .map(|destination| destination.to_string())
        .map_err(|error| chain(&error))
}

/// The directory file with every node in one form.
///
/// # Errors
///
/// The reason why it is not used.
pub fn directory_file(text: &str) -> Result<String, String> {
    directory::rewritten(text).map_err(|error| chain(&error))
}

/// An entry of `--forward` or ConfigMap culvert-forwards in one form.
///
/// # Errors
///
/// The reason why it is not used.
pub fn forward(text: &str) -> Result<String, String> {
    let forward: Forward = text.parse().map_err(|error| chain(&error))?;
    Ok(forward.to_string())
}
