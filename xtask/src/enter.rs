//! `cargo xtask enter HOST COMMAND...`: runs a command as a process of one of the held demo's
//! hosts. In the cloud, the commands of proxy and redirector find the demo's programs.

use std::process::ExitCode;

use anyhow::{Context, Result};
use culvert_lab::host::Host;
use culvert_lab::{LabName, site, workspace};

/// Run a command as a process of a host of the held demo.
#[derive(clap::Args)]
pub struct Args {
    /// cloud, edge-1, edge-2 or edge-3
    host: String,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// Runs the command and returns its exit code.
///
/// # Errors
/// The host is unknown, or the demo is not up.
pub fn run(args: &Args) -> Result<ExitCode> {
    let host = Host::from_name(&args.host)
        .with_context(|| format!("no host {:?}: cloud, edge-1, edge-2 or edge-3", args.host))?;
    let lab = LabName::demo();
    let mut command = site::enter(&lab, host, &args.command[0])
        .context("the demo is not up: start `cargo xtask demo --hold` in another terminal")?;
    let files = lab.folder().join(host.name());
    let programs = workspace::binary("culvert-proxy");
    command
        .args(&args.command[1..])
        .env("PATH", workspace::path_with_folder_of(&programs)?);
    if host == Host::Cloud {
        command
            .env("CULVERT_RUN_DIR", files.join("run"))
            .env("CULVERT_STATE_DIR", files.join("redirector"));
    }
    let status = command.status()?;
    let code = match status.code() {
        Some(code) => u8::try_from(code).unwrap_or(1),
        None => 1,
    };
    Ok(ExitCode::from(code))
}
