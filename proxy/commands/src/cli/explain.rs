//! `culvert-proxy explain`.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;
use culvert_api::proto::control as proto;
use serde::Deserialize;

use super::Client;
use crate::check::json;

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

    /// Admin address of the redirector on this host, which knows what the kernel here does.
    #[arg(
        long,
        env = "CULVERT_REDIRECTOR_ADMIN",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:7419"
    )]
    redirector_admin: SocketAddr,
}

/// How the redirector says that this host has neighbours at an edge address.
const LEFT_ALONE: &str = "never steered";

/// What the redirector's page `/debug/explain` says of an address.
#[derive(Debug, Deserialize)]
struct InKernel {
    lines: Vec<KernelLine>,
}

#[derive(Debug, Deserialize)]
struct KernelLine {
    subject: String,
    text: String,
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
        let mut explained = Client::connect(control_socket)
            .await?
            .explain(request)
            .await?;
        // Without a redirector nothing is steered here, which may be as it should.
        let escaped = self.destination.replace('[', "%5B").replace(']', "%5D");
        let path = format!("/debug/explain/{escaped}");
        if let Ok(addresses) = json(self.redirector_admin, &path).await {
            add_kernel(&mut explained, addresses);
        }
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

/// The proxy says what hosts steer. If this one does not, its redirector knows why, and what to do.
fn add_kernel(explained: &mut proto::ExplainResponse, addresses: Vec<InKernel>) {
    let mut reasons = Vec::new();
    let mut fixes = Vec::new();
    for InKernel { lines } in addresses {
        let mut reason = String::new();
        for line in lines {
            match line.subject.as_str() {
                "directory" => reason = line.text,
                "fix" => fixes.push(line.text),
                _ => {}
            }
        }
        // A name has other addresses, and of an offline node the proxy knows more.
        if !reason.contains(LEFT_ALONE) {
            return;
        }
        reasons.push(reason);
    }
    let mut steering = explained.lines.iter_mut();
    let Some(line) = steering.find(|line| line.subject == "steering") else {
        return;
    };
    if reasons.is_empty() || !line.text.starts_with("steered") {
        return;
    }
    line.text = format!("not by this host: {}", reasons.join("; "));
    line.broken = true;
    // What an agent would have to do for it helps nobody.
    explained.lines.retain(|line| line.subject != "fix");
    for text in fixes {
        explained.lines.push(proto::ExplainLine {
            subject: "fix".to_owned(),
            text,
            broken: false,
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn explained() -> proto::ExplainResponse {
        let line = |subject: &str, text: &str| proto::ExplainLine {
            subject: subject.to_owned(),
            text: text.to_owned(),
            broken: false,
        };
        proto::ExplainResponse {
            lines: vec![
                line("steering", "steered"),
                line("fix", "--allow 10.244.0.77:9100"),
            ],
            ..proto::ExplainResponse::default()
        }
    }

    fn page_with(kernel: &str) -> String {
        let mut explained = explained();
        let kernel = serde_json::from_str(kernel).expect("the page of the redirector");
        add_kernel(&mut explained, kernel);
        page(&explained)
    }

    #[test]
    fn what_this_host_leaves_alone_is_said_with_its_reason_and_its_own_fix() {
        let page = page_with(
            r#"[{"destination": "10.244.0.77:9100", "lines": [
                {"subject": "directory", "text": "never steered: it is in 10.244.0.0/24"},
                {"subject": "hooks", "text": "passes"},
                {"subject": "fix", "text": "dial edge-2"}]}]"#,
        );
        assert!(page.contains("10.244.0.0/24"), "{page}");
        assert!(page.contains("dial edge-2"), "{page}");
        assert!(!page.contains("--allow"), "{page}");
    }

    #[test]
    fn of_an_offline_node_the_proxy_knows_more() {
        let page = page_with(
            r#"[{"destination": "10.0.3.7:9100", "lines": [
                {"subject": "directory", "text": "address of edge-1, offline"},
                {"subject": "fix", "text": "start its agent"}]}]"#,
        );
        assert!(
            page.contains("steered") && page.contains("--allow"),
            "{page}"
        );
    }

    #[test]
    fn of_a_names_addresses_one_that_is_steered_is_enough() {
        let page = page_with(
            r#"[{"destination": "198.18.0.2", "lines": [{"subject": "hooks", "text": "steered"}]},
                {"destination": "fd00::2", "lines": [{"subject": "fix", "text": "add IPv6"}]}]"#,
        );
        assert!(!page.contains("not by this host"), "{page}");
        assert!(!page.contains("add IPv6"), "{page}");
    }
}
