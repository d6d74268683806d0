//! `culvert client`: certificates of clients that come by TLS, such as Prometheus.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use crate::args::{ClientCommand, ClientCreate, Output};
use crate::client_certificate::{ClientFiles, create};
use crate::screen::Screen;

/// What was made.
#[derive(Debug, Serialize)]
struct Created {
    client_authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    /// For Prometheus.
    scrape_config: String,
}

/// Runs the subcommand. It asks no host.
///
/// # Errors
/// A file is there already, or cannot be written.
pub(super) fn run(command: &ClientCommand, output: Output) -> Result<()> {
    let ClientCommand::Create(arguments) = command;
    let folder = std::path::absolute(&arguments.folder)?;
    let files = create(&folder, arguments.name.as_str(), arguments.lifetime)?;
    let created = Created {
        scrape_config: scrape_config(arguments, &files)?,
        client_authority: files.authority,
        certificate: files.certificate,
        key: files.key,
    };
    let text = match output {
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&created)?),
        Output::Text => text(&created),
    };
    Screen::of_output().print(&text)
}

fn text(created: &Created) -> String {
    format!(
        "# {} and {} are made.\n\
         # The proxy lets this client in with `--connect-listen [::]:7402 --connect-client-ca {}`.\n\
         # For prometheus.yml:\n{}",
        created.certificate.display(),
        created.key.display(),
        created.client_authority.display(),
        created.scrape_config
    )
}

/// The job of docs/five-machines.md.
fn scrape_config(arguments: &ClientCreate, files: &ClientFiles) -> Result<String> {
    let ClientCreate { proxy, ca, .. } = arguments;
    let tls = format!(
        "tls_config: {{ca_file: {}, cert_file: {}, key_file: {}}}",
        std::path::absolute(ca)?.display(),
        files.certificate.display(),
        files.key.display()
    );
    Ok(format!(
        "scrape_configs:\n\
         - job_name: machines\n  \
           proxy_url: https://{proxy}\n  {tls}\n  \
           http_sd_configs:\n  \
           - url: https://{proxy}/sd/prometheus?port=9100\n    {tls}\n  \
           relabel_configs:\n  \
           - {{source_labels: [__meta_culvert_node], target_label: node}}\n"
    ))
}
