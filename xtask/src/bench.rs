//! `cargo xtask bench`: what has to be there before [`culvert_bench`] measures.

use anyhow::Result;

use crate::{build_ebpf, setup};

/// Measures, prints the table and writes the JSON.
///
/// # Errors
/// If something cannot be built or started, or a path failed.
pub fn run(args: &culvert_bench::Args) -> Result<()> {
    culvert_bench::run(args, || {
        setup::ensure()?;
        build_ebpf::run()
    })
}
