//! The function that the fuzz target of other tunnels' settings (`fuzz/`) calls.

use crate::{Tunnel, page, source};

/// What `migrate` prints for a file of another tunnel, `yurttunnel`, `superedge` or `konnectivity`,
/// without an extension.
///
/// # Errors
///
/// The reason why it cannot be read.
pub fn migrated(from: &str, text: &str) -> Result<String, String> {
    let all = [Tunnel::Yurt, Tunnel::SuperEdge, Tunnel::Konnectivity];
    let from = all.into_iter().find(|tunnel| tunnel.flag_value() == from);
    let from = from.unwrap_or(Tunnel::Yurt);
    let found = source::pieces("file".to_owned(), None, text);
    let translated = found.and_then(|found| from.translate(&found));
    let (plan, report) = translated.map_err(|problem| problem.to_string())?;
    Ok(page::page(from, &plan, &report, "deploy"))
}
