//! Unpacks Debian's packages of the stock programs.

use std::process::Command;

use anyhow::{Result, ensure};
use culvert_lab::unpacked::Unpacked;

use super::apt;

/// Unpacks a program, unless it exists.
pub(super) fn install(stock: Unpacked) -> Result<()> {
    if stock.is_there() {
        return Ok(());
    }
    let program = stock.program();
    ensure!(
        apt::is_there(),
        "tests and the demo need {}: put the program at {}",
        stock.packages()[0],
        program.display()
    );
    // The package with the program comes last: if it exists, all exist.
    for package in stock.packages().iter().rev() {
        apt::unpack(package, &stock.folder())?;
    }
    ensure!(
        stock.is_there(),
        "package {} has no {}",
        stock.packages()[0],
        program.display()
    );
    if stock == Unpacked::SystemdResolved && !starts(stock) {
        // The program needs this library, which a machine without systemd lacks.
        apt::install(&["libsystemd-shared"])?;
    }
    Ok(())
}

fn starts(stock: Unpacked) -> bool {
    let mut command = Command::new(stock.program());
    let done = command
        .arg("--version")
        .env("LD_LIBRARY_PATH", stock.libraries())
        .output();
    done.is_ok_and(|done| done.status.success())
}
