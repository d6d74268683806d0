//! A copied certificate is void once its node was removed, or deleted and created again. This holds
//! at every proxy, also at one that was away, and for renewals.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::ports::free_address;
use culvert_lab::process::Process;
use culvert_lab::{wait, workspace};

use crate::cluster::{DEADLINE, edge, get};
use crate::identity::site::{Agent, ENROLLED_AGAIN, agent_token, create_objects};
use crate::loopback::echo_backend;
use crate::proxy::{Proxy, program};

#[test]
fn what_one_proxy_revokes_or_the_cluster_deletes_is_void_at_all_of_them() {
    crate::cluster::with_server(|server| revocation(server));
}

fn revocation(server: &ApiServer) -> Result<()> {
    create_objects(server)?;
    let backend = echo_backend()?;
    let target = format!("edge-1:{backend}");
    let mut proxies = [
        Proxy::start(server, "proxy-1", &[])?,
        Proxy::start(server, "proxy-2", &[])?,
    ];
    let mut agent = Agent::start(
        server,
        "agent",
        &agent_token(server, "agent", "edge-1")?,
        backend,
    )?;
    let both = proxies.each_ref().map(|proxy| proxy.agents.to_string());
    agent.mount_until(server, "both proxies", |_, told| {
        both.iter().all(|one| told.contains(one))
    })?;
    for proxy in &mut proxies {
        drop(proxy.wait_for_stream(&target)?);
    }

    // The Node still exists, but its key was copied.
    let stolen = steal(server, &agent, "stolen-1")?;
    let said = proxies[0].control(&["node", "remove", "edge-1"]).output()?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(said.contains("revoked on all proxies"), "{said}");
    let shared = get(
        server,
        &["configmap", "-n", "culvert-system", "culvert-revocations"],
    )?;
    ensure!(
        shared["data"]["revocations"]
            .as_str()
            .is_some_and(|text| text.contains("edge-1")),
        "{shared}"
    );
    expect_refused(server, &mut proxies, "thief-1", &stolen, "was revoked")?;
    agent.wait_for_log(ENROLLED_AGAIN, &[])?;
    for proxy in &mut proxies {
        drop(proxy.wait_for_stream(&target)?);
    }

    // The Node is deleted and created again, while the second proxy is away.
    let stolen = steal(server, &agent, "stolen-2")?;
    agent.process.terminate(DEADLINE)?;
    proxies[1].process.terminate(DEADLINE)?;
    workspace::output(server.kubectl().args(["delete", "node", "edge-1"]))?;
    edge(server, "edge-1", "10.0.3.7")?;
    proxies[1].start_again()?;
    for proxy in &mut proxies {
        wait::until("the proxy has the Node that there is now", DEADLINE, || {
            let age = proxy.metric("culvert_proxy_directory_age_seconds")?;
            ensure!(age == Some(0.0), "{age:?}");
            Ok(())
        })?;
        proxy.wait_for_node("edge-1", &["10.0.3.7"])?;
    }
    expect_refused(
        server,
        &mut proxies,
        "thief-2",
        &stolen,
        "of an earlier Node edge-1",
    )?;
    // The agent of the new Node has a new pod.
    agent.set_token(Some(&agent_token(server, "agent-again", "edge-1")?))?;
    agent.start_again()?;
    for proxy in &mut proxies {
        drop(proxy.wait_for_stream(&target)?);
    }

    // Only one proxy would know a join token.
    let refused = proxies[0]
        .control(&["token", "create", "edge-1"])
        .output()?;
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.contains("agents enrol by themselves"), "{refused}");
    Ok(())
}

/// Copies the agent's state directory.
fn steal(server: &ApiServer, agent: &Agent, name: &str) -> Result<PathBuf> {
    let folder = server.folder().join(name);
    fs::create_dir_all(&folder)?;
    for file in ["identity.pem", "ca.pem"] {
        fs::copy(agent.state(file), folder.join(file)).with_context(|| format!("copy {file}"))?;
    }
    Ok(folder)
}

/// Fails unless every proxy refuses the stolen files and the agent logs the reason.
fn expect_refused(
    server: &ApiServer,
    proxies: &mut [Proxy; 2],
    name: &str,
    stolen: &Path,
    words: &str,
) -> Result<()> {
    let mut command = program("culvert-agent");
    command
        .arg("--state-dir")
        .arg(server.folder().join(name))
        .arg("--ca")
        .arg(stolen.join("ca.pem"));
    command
        .arg("--cert")
        .arg(stolen.join("identity.pem"))
        .arg("--key")
        .arg(stolen.join("identity.pem"));
    command.args(["--admin-listen", &free_address()?.to_string()]);
    for proxy in proxies.iter() {
        command.args(["--proxy", &proxy.agents.to_string()]);
    }
    let mut thief = Process::start(name, server.folder(), &mut command)?;
    wait::until(
        &format!("{name} is refused by both proxies"),
        DEADLINE,
        || {
            thief.check()?;
            for proxy in proxies.iter() {
                let at = proxy.agents.to_string();
                let refused = thief.logged(
                    "no tunnel; trying again",
                    &[("proxy", &at), ("reason", words)],
                );
                ensure!(!refused.is_empty(), "not at {at}: {}", thief.log());
            }
            Ok(())
        },
    )?;
    ensure!(!thief.log().contains("tunnel up"), "{}", thief.log());
    Ok(())
}
