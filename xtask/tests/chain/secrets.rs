//! What no log may contain at any log level.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::host::Host;
use culvert_lab::workspace;

use crate::connect::{self, Answer};
use crate::world::{self, ECHO};

const PAYLOAD: &str = "sesame-open-0451";

#[test]
fn no_log_holds_a_token_or_payload_even_at_its_most_verbose() {
    let trace = || vec![("CULVERT_LOG".to_owned(), "trace".to_owned())];
    let options = Options {
        agent_env: trace(),
        cloud_env: trace(),
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        // The secret is sent in a steered connection; with CONNECT directly after the request; and
        // later.
        let target = format!("edge-1:{ECHO}");
        ensure!(world.talk(&target, PAYLOAD)? == PAYLOAD, "the echo");
        let socket = connect::open(world, &target)?;
        let answer = Answer::of(&socket, &socket, PAYLOAD.as_bytes(), PAYLOAD.len())?;
        ensure!(answer.body == PAYLOAD.as_bytes(), "{answer:?}");
        drop(socket);
        world.wait_for_no_streams()?;

        let join = world.culvert.create_token(Host::Edge2, &[])?;
        let token = join
            .iter()
            .skip_while(|word| *word != "--token")
            .nth(1)
            .context("no token")?;
        let (edge, agent) = (
            world.lab.site(Host::Edge2),
            workspace::binary("culvert-agent"),
        );
        let log = edge.file("join.log");
        let mut command = edge.command("sh");
        command
            .args(["-c", "exec \"$@\" > \"$0\" 2>&1"])
            .arg(&log)
            .arg(agent)
            .args(&join);
        command
            .arg("--state-dir")
            .arg(edge.file("agent"))
            .env("CULVERT_LOG", "trace");
        workspace::output(&mut command)?;

        let secret = token.rsplit('.').next().context("a token has parts")?;
        let mut logs = 0;
        for host in Host::ALL {
            logs += check_logs(world.lab.site(host).folder(), &[PAYLOAD, secret])?;
        }
        // The logs of proxy, redirector, agent, and of the join.
        ensure!(logs >= 4, "only {logs} logs with trace lines");
        Ok(())
    });
}

/// Searches all logs of a host; returns how many were verbose.
fn check_logs(folder: &Path, secrets: &[&str]) -> Result<usize> {
    let mut verbose = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        for secret in secrets {
            let line = log.lines().find(|line| line.contains(secret));
            ensure!(
                line.is_none(),
                "{} has {secret:?}: {}",
                path.display(),
                line.unwrap_or_default()
            );
        }
        verbose += usize::from(log.contains("TRACE"));
    }
    Ok(verbose)
}
