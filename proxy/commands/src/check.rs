//! `culvert-proxy check`: tests everything that connections to edge nodes depend on, and says for
//! each failure what to do.

mod dial;
mod dns;
mod facts;
mod finding;
mod judge;
mod local_ports;
mod resolver;

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use culvert_proxy_cluster::KubernetesArgs;
use serde_json::json;

use facts::Facts;
pub(crate) use facts::json;
use finding::{Finding, Verdict, page};

/// Exits with 0 if nothing has failed, warnings or not; with 1 if something has; with 2 if it was
/// called wrongly.
#[derive(Args, Clone, Debug)]
pub struct CheckCommand {
    /// Admin address of the redirector on this host.
    #[arg(
        long,
        env = "CULVERT_REDIRECTOR_ADMIN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7419"
    )]
    redirector_admin: SocketAddr,

    /// This host has no redirector: nothing is steered, and clients come by the proxy's own ports.
    #[arg(long)]
    without_redirector: bool,

    /// `text` for people, `json` for programs.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,

    #[command(flatten)]
    kubernetes: KubernetesArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

impl CheckCommand {
    /// Checks this host, with its proxy's control socket and admin address.
    pub async fn run(&self, control_socket: &Path, proxy_admin: SocketAddr) -> Result<()> {
        let findings = judge::findings(&Facts::gather(self, control_socket, proxy_admin).await);
        match self.output {
            Output::Text => print!("{}", page(&findings)),
            Output::Json => println!("{:#}", json!({ "checks": findings })),
        }
        let mut failed = Vec::new();
        for finding in &findings {
            if finding.is_failure() {
                failed.push(finding.check);
            }
        }
        ensure!(
            failed.is_empty(),
            "{} of {} checks failed: {}",
            failed.len(),
            findings.len(),
            failed.join(", ")
        );
        Ok(())
    }
}

impl Finding {
    fn is_failure(&self) -> bool {
        self.verdict == Verdict::Failure
    }
}
