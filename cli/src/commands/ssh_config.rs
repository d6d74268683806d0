//! `culvert ssh-config`: lines for ssh's configuration, with which `ssh NODE` comes through a tunnel.

use std::time::Duration;

use anyhow::Result;
use culvert_api::shell_word;

use super::note_unanswered;
use crate::answered::all_ok;
use crate::args::Whom;
use crate::cloud_host::CloudHost;
use crate::node::{Node, nodes};
use crate::session::Session;

/// Prints the lines.
///
/// # Errors
/// No host has answered.
pub(super) async fn run(session: &Session, whom: &Whom) -> Result<()> {
    let answers = session.ask(Duration::ZERO, CloudHost::ask).await;
    note_unanswered(&answers)?;
    let known = nodes(all_ok(&answers));
    session.screen.print(&lines(&known, whom))
}

fn lines(nodes: &[Node], whom: &Whom) -> String {
    let mut names = String::new();
    for node in nodes {
        names.push(' ');
        names += &node.node;
    }
    if names.is_empty() {
        return "# no node is known\n".to_owned();
    }
    format!(
        "Host{names}\n  ProxyCommand culvert connect %h:%p{}\n",
        flags(whom)
    )
}

/// The flags that name the same hosts.
fn flags(whom: &Whom) -> String {
    let mut flags = String::new();
    if whom.local {
        flags += " --local";
    }
    for host in &whom.ssh {
        flags += &format!(" --ssh {}", shell_word(host));
    }
    if let Some(context) = &whom.context {
        flags += &format!(" --context {}", shell_word(context));
    }
    if let Some(file) = &whom.kubeconfig {
        flags += &format!(" --kubeconfig {}", shell_word(&file.display().to_string()));
    }
    // ssh reads % itself.
    flags.replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Arguments;
    use crate::testing::site;

    #[test]
    fn ssh_asks_the_same_hosts() {
        let words = [
            "culvert",
            "ssh-config",
            "--ssh",
            "root@cloud-1",
            "--context",
            "a b%",
        ];
        let parsed = Arguments::try_parse_from(words).expect("it parses");
        let text = lines(&site(2).nodes, &parsed.whom);
        assert!(text.starts_with("Host edge-1 edge-2\n"), "{text}");
        assert!(
            text.contains("connect %h:%p --ssh 'root@cloud-1' --context 'a b%%'\n"),
            "{text}"
        );
    }
}
