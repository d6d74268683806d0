//! `cargo xtask bench`: prepares what [`culvert_bench`] needs, and runs it.

use anyhow::Result;
use culvert_lab::kubernetes::Programs;

use crate::setup::Use;
use crate::{build_ebpf, kube, setup};

/// Measures, prints the table and writes the JSON.
///
/// # Errors
/// Something cannot be built or started, or a path failed.
pub fn run(args: &culvert_bench::Args) -> Result<()> {
    if args.starts_api_server() {
        kube::ensure_there(&Programs::chosen(None))?;
    }
    culvert_bench::run(args, || {
        setup::ensure(&[Use::Ebpf, Use::Labs])?;
        build_ebpf::run()
    })
}
