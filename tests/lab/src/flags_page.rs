//! docs/flags.md, which is made of the programs' own help.

use std::process::Command;

use anyhow::Result;

use crate::workspace;

/// The file in `docs/`.
pub const FILE: &str = "flags.md";

const HEAD: &str = "\
# Flags and subcommands

`cargo xtask flags` makes this page of the programs' own help.

In a variable, commas separate the values of a flag that may be repeated. Only the proxy's `--forward` has semicolons there:
`CULVERT_FORWARD='2222=edge-1:22;2223=edge-2:22'`. Durations are written `500ms`, `30s`, `1h30m`, `30d`;
sizes `512KiB`, `4MiB`, `1GiB`.

The four daemons have `run`. Proxy, redirector and agent also run without a subcommand. On a terminal and without any
argument, each program prints what it is and its first commands, changes nothing and exits with 2.
";

/// Each is the only program of the package of its name.
pub const PROGRAMS: [&str; 5] = [
    "culvert",
    "culvert-proxy",
    "culvert-redirector",
    "culvert-agent",
    "culvert-hub",
];

/// The page, by the programs in `target/debug`.
///
/// # Errors
/// A program is not built, or fails.
pub fn made() -> Result<String> {
    let mut page = HEAD.to_owned();
    for program in PROGRAMS {
        let mut command = Command::new(workspace::binary(program));
        let section = workspace::output(command.arg("--flags-page"))?;
        page.push_str(&format!("\n{section}"));
    }
    Ok(page)
}
