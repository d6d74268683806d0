//! `culvert-proxy check-host`: tests everything that connections to edge nodes depend on, as seen
//! from this host, and says for each failure what to do. `culvert check` runs it on every host.

mod conntrack;
mod dial;
mod dns;
mod facts;
mod finding;
mod judge;
mod local_ports;
mod resolver;

use std::net::SocketAddr;
use std::path::Path;

use clap::Args;
use culvert_proxy_cluster::{KubernetesArgs, Serves};
use serde_json::json;

use facts::Facts;

/// What is to be checked. The findings are printed as JSON.
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

    /// The proxy's own, if it has it.
    #[arg(long, env = "CULVERT_VIEW_LISTEN", value_name = "IP[:PORT]")]
    view_listen: Option<String>,

    #[command(flatten)]
    kubernetes: KubernetesArgs,
}

impl CheckCommand {
    /// Checks this host, with its proxy's control socket and admin address.
    pub async fn run(&self, control_socket: &Path, proxy_admin: SocketAddr) {
        let findings = judge::findings(&Facts::gather(self, control_socket, proxy_admin).await);
        println!("{:#}", json!({ "checks": findings }));
    }

    /// What the proxy serves besides.
    fn serves(&self) -> Serves {
        match &self.view_listen {
            Some(_) => Serves::View,
            None => Serves::NoView,
        }
    }
}
