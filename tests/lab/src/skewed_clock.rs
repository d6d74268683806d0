//! Wrong clocks: programs that are started with them see another time than the machine's.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::workspace;

/// The environment of a program that is linked with glibc and whose clock is wrong by that many
/// seconds. A library for it is compiled in the folder.
///
/// # Errors
/// It cannot be compiled.
pub fn environment(folder: &Path, seconds: i64) -> Result<[(&'static str, String); 2]> {
    let library = folder.join("skewed_clock.so").display().to_string();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/skewed_clock.c");
    workspace::output(Command::new("cc").args(["-shared", "-fPIC", "-o", &library, source]))?;
    Ok([("LD_PRELOAD", library), ("CLOCK_SKEW", seconds.to_string())])
}
