//! `cargo xtask bench`: prepares what [`culvert_bench`] needs, and runs it.

use anyhow::Result;

use crate::setup::Use;
use crate::{build_ebpf, setup};

/// Measures, prints the table and writes the JSON.
///
/// # Errors
/// Something cannot be built or started, or a path failed.
pub fn run(args: &culvert_bench::Args) -> Result<()> {
    culvert_bench::run(args, || {
        setup::ensure(&[Use::Ebpf, Use::Labs])?;
        build_ebpf::run()
    })
}
