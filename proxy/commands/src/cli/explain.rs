//! `culvert-proxy explain`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;
use culvert_api::proto::control as proto;

use super::Client;

/// What to explain.
#[derive(Args, Clone, Debug)]
pub struct ExplainCommand {
    /// An address, a VIP, a node's name or `<node>.<zone>`, with or without a port: 10.0.3.7:9100,
    /// edge-1, [fd00::7]:10250.
    destination: String,

    /// Also opens a stream to it and says how the agent's dial went; nothing is sent. Fails if the
    /// dial does.
    #[arg(long)]
    dial: bool,
}

impl ExplainCommand {
    /// Asks the proxy that listens on the socket, and prints what it says.
    ///
    /// # Errors
    /// No node has the name, or `--dial` has no connection.
    pub async fn run(&self, control_socket: &Path) -> Result<()> {
        let request = proto::ExplainRequest {
            destination: self.destination.clone(),
            dial: self.dial,
        };
        let explained = Client::connect(control_socket)
            .await?
            .explain(request)
            .await?;
        print!("{}", page(&explained));
        ensure!(!explained.no_node, "no node is named {}", self.destination);
        ensure!(
            explained.reachable || !self.dial,
            "no connection to {}",
            self.destination
        );
        Ok(())
    }
}

/// In the shape of `culvert-redirector explain`.
fn page(explained: &proto::ExplainResponse) -> String {
    let mut text = format!("{}\n", explained.title);
    for line in &explained.lines {
        // A String takes everything.
        let _written = writeln!(text, "  {:<9}  {}", line.subject, line.text);
    }
    text
}
