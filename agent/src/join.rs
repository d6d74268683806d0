//! `culvert-agent join`: exchanges a token for this node's certificate and stores it.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use culvert_tunnel::ALPN_ENROLL;
use rcgen::KeyPair;
use rustls::pki_types::ServerName;

use crate::args::JoinArgs;
use crate::connect::connect;
use crate::enroll::{self, Enrolled};
use crate::outbound::Outbound;
use crate::proxy_address::ProxyAddress;
use crate::state::{StateDir, StateError};
use crate::tls;

/// Joins at the first proxy that answers with a certificate, and says on standard output what to do next.
///
/// # Errors
/// Every proxy's reason, if none gave a certificate; a directory that belongs to another node.
pub(crate) async fn run(state_dir: &Path, args: JoinArgs) -> Result<()> {
    let outbound = Outbound::from_environment(|name| std::env::var(name).ok())?;
    let state = StateDir::new(state_dir);
    state.prepare()?;
    let before = former_node(&state)?;
    let key = state.join_key()?;
    let enrolled = enroll_anywhere(&outbound, &args, &key).await?;
    let node = &enrolled.identity.node;
    if let Some(before) = before.filter(|before| before != node.as_str())
        && !args.force
    {
        bail!(
            "{} holds the certificate of node {before}, but the token is for node {node}: choose another --state-dir, or give \
             --force to become {node}; the token stays good for the same command",
            state.path().display()
        );
    }
    state.store_join(&enrolled.text, &args.proxy)?;
    println!("Joined as node {node}. Key and certificate are in {}.", state.path().display());
    println!("Next, start the agent: {}", next_command(&state));
    Ok(())
}

fn next_command(state: &StateDir) -> String {
    if state.path() == Path::new("/var/lib/culvert/agent") {
        "systemctl enable --now culvert-agent, or culvert-agent".to_owned()
    } else {
        format!("culvert-agent --state-dir {}", state.path().display())
    }
}

/// The node that the directory belongs to. A certificate that cannot be read any more belongs to nobody.
fn former_node(state: &StateDir) -> Result<Option<String>> {
    match state.identity() {
        Ok(text) => Ok(text.parse().ok().map(|identity| identity.node.as_str().to_owned())),
        Err(StateError::NotJoined(_) | StateError::Parse { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn enroll_anywhere(outbound: &Outbound, args: &JoinArgs, key: &KeyPair) -> Result<Enrolled> {
    let mut reasons = Vec::new();
    for proxy in &args.proxy {
        match enroll_at(outbound, proxy, args, key).await {
            Ok(enrolled) => return Ok(enrolled),
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    Err(anyhow!("{}", reasons.join("\n  also: ")).context("not joined"))
}

async fn enroll_at(outbound: &Outbound, proxy: &ProxyAddress, args: &JoinArgs, key: &KeyPair) -> Result<Enrolled> {
    let server_name = ServerName::try_from(args.server_name.clone())
        .with_context(|| format!("--server-name {:?}", args.server_name))?;
    let config = tls::pinned(args.ca_pin, ALPN_ENROLL);
    let connection = connect(outbound, proxy, config, &server_name).await?;
    enroll::join(connection, &args.token, key, &args.server_name).await.with_context(|| format!("proxy {proxy}"))
}
