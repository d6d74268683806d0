//! `culvert ssh-config`: lines for ssh's configuration, with which `ssh NODE` comes through a tunnel.

use std::path::{Path, absolute};
use std::time::Duration;

use anyhow::Result;
use culvert_api::{NodeName, shell_word};
use culvert_site::answered::all_ok;
use culvert_site::node::{Node, nodes};

use super::report_unanswered;
use crate::args::{USUAL_NAMESPACE, USUAL_RUN_DIR, Whom};
use crate::cloud_host::ask_cloud_host;
use crate::session::Session;

/// Prints the lines.
///
/// # Errors
/// No host has answered.
pub(super) async fn run(session: &Session, whom: &Whom) -> Result<()> {
    let answers = session.ask(Duration::ZERO, ask_cloud_host).await;
    report_unanswered(&answers)?;
    let known = nodes(all_ok(&answers));
    let mut whom = whom.clone();
    // The current one may be another one later.
    if let Some(context) = session.hosts.context(&whom) {
        whom.context = Some(context);
    }
    session.screen.print(&lines(&known, &whom)?)
}

fn lines(nodes: &[Node], whom: &Whom) -> Result<String> {
    let mut names = String::new();
    for node in nodes {
        // It goes into a file that ssh obeys: a proxy is not believed.
        if let Ok(name) = node.node.parse::<NodeName>() {
            names.push(' ');
            names += name.as_str();
        }
    }
    if names.is_empty() {
        return Ok("# no node is known\n".to_owned());
    }
    Ok(format!(
        "Host{names}\n  ProxyCommand culvert connect %h:%p{}\n",
        flags(whom)?
    ))
}

/// The flags that name the same hosts, from whatever folder ssh runs in.
fn flags(whom: &Whom) -> Result<String> {
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
        flags += &path_flag("--kubeconfig", file)?;
    }
    if whom.view {
        flags += " --view";
    }
    if whom.namespace != USUAL_NAMESPACE {
        flags += &format!(" --namespace {}", shell_word(&whom.namespace));
    }
    if whom.run_dir != Path::new(USUAL_RUN_DIR) {
        flags += &path_flag("--run-dir", &whom.run_dir)?;
    }
    // ssh reads % itself.
    Ok(flags.replace('%', "%%"))
}

fn path_flag(flag: &str, path: &Path) -> Result<String> {
    let path = absolute(path)?.display().to_string();
    Ok(format!(" {flag} {}", shell_word(&path)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use culvert_site::testing::site;

    use super::*;
    use crate::args::Arguments;

    fn whom(words: &[&str]) -> Whom {
        let line = [&["culvert", "ssh-config"], words].concat();
        let parsed = Arguments::try_parse_from(line).expect("it parses");
        parsed.whom
    }

    #[test]
    fn ssh_asks_the_same_hosts() -> Result<()> {
        let whom = whom(&["--ssh", "root@cloud-1", "--context", "a b%"]);
        let text = lines(&site(2).nodes, &whom)?;
        assert!(text.starts_with("Host edge-1 edge-2\n"), "{text}");
        assert!(
            text.contains("connect %h:%p --ssh 'root@cloud-1' --context 'a b%%'"),
            "{text}"
        );
        Ok(())
    }

    #[test]
    fn ssh_asks_the_same_cluster_from_any_folder() -> Result<()> {
        let words = [
            "--kubeconfig",
            "k",
            "--view",
            "-n",
            "edge",
            "--run-dir",
            "sockets",
        ];
        let flags = flags(&whom(&words))?;
        let here = std::env::current_dir()?.display().to_string();
        for part in [
            format!(" --kubeconfig {}", shell_word(&format!("{here}/k"))),
            " --view".to_owned(),
            " --namespace edge".to_owned(),
            format!(" --run-dir {}", shell_word(&format!("{here}/sockets"))),
        ] {
            assert!(flags.contains(&part), "{part}: {flags}");
        }
        Ok(())
    }

    #[test]
    fn a_name_that_is_none_adds_no_line() -> Result<()> {
        let mut nodes = site(2).nodes;
        nodes[0].node = "x\n  ProxyCommand touch /tmp/was-here\nHost *".to_owned();
        nodes[1].node = "*".to_owned();
        assert_eq!(lines(&nodes, &whom(&[]))?, "# no node is known\n");
        nodes[1].node = "edge-2".to_owned();
        let text = lines(&nodes, &whom(&[]))?;
        assert!(text.starts_with("Host edge-2\n"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        Ok(())
    }
}
