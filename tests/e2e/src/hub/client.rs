//! The pod as a client of the API server. Its environment, its token and its `ca.crt` lead it to the
//! hub.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::containers::{Container, running};
use super::pods::{APP, MAIN};
use crate::cluster::KUBECTL_TIME;
use crate::command::output;
use crate::world::World;

/// Where the hub serves pods.
pub(super) const ADDRESS: &str = "169.254.74.40";
/// What the pod may read.
const PODS: &str = "/api/v1/namespaces/shop/pods";
/// What it may not.
const SECRETS: &str = "/api/v1/namespaces/shop/secrets";
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The names of the pods as the pod reads them.
pub(super) type Names = Vec<String>;

/// An answer of the hub.
struct Answer {
    status: u16,
    /// Out of the hub's memory.
    is_local: bool,
    body: String,
}

/// With a link: what the API server says.
pub(super) fn prove_online(world: &mut World) -> Result<Names> {
    world.claim(
        "a pod is led to the hub, and is answered as the API server answers it: with its token, \
         without one, and where it may not read",
        |world| {
            let names = names(world, false)?;
            ensure!(ask(world, PODS, false)?.status == 401, "without a token");
            let refused = ask(world, SECRETS, true)?;
            ensure!(refused.status == 403, "{SECRETS}: {}", refused.status);
            Ok(names)
        },
    )
}

/// Without a link: what it was shown with one, and nothing else.
pub(super) fn prove_offline(world: &mut World, before: &Names) -> Result<()> {
    world.claim(
        "the link is cut: the pod sees what it saw with it and nothing else, and nothing without \
         its token",
        |world| {
            let now = names(world, true)?;
            ensure!(now == *before, "now {now:?}, before {before:?}");
            ensure!(ask(world, PODS, false)?.status == 401, "without a token");
            for path in [SECRETS, "/api/v1/namespaces/shop/services"] {
                let unknown = ask(world, path, true)?;
                ensure!(unknown.status == 503, "{path}: {}", unknown.status);
            }
            Ok(())
        },
    )
}

/// What the pod trusts, as a program has it that read it when it started.
pub(super) fn authority(world: &World) -> Result<Vec<u8>> {
    let path = authority_path(&running(world, APP, MAIN)?);
    std::fs::read(&path).with_context(|| format!("read {}", path.display()))
}

/// After an uninstall: a program that started before it is answered.
pub(super) fn prove_uninstalled(world: &mut World, authority: &[u8]) -> Result<()> {
    let path = world.file("hub-authority.crt");
    std::fs::write(&path, authority).with_context(|| format!("write {}", path.display()))?;
    world.claim(
        "uninstalled, the hub answers a program that was led to it before",
        |world| {
            let pod = running(world, APP, MAIN)?;
            let answer = ask_trusting(&pod, &path, PODS, true)?;
            ensure!(
                answer.status == 200 && !answer.is_local,
                "{}: {}",
                answer.status,
                answer.body
            );
            Ok(())
        },
    )
}

fn authority_path(pod: &Container) -> PathBuf {
    format!("/proc/{}/root{ACCOUNT}/ca.crt", pod.pid).into()
}

fn names(world: &World, is_local: bool) -> Result<Names> {
    let answer = ask(world, PODS, true)?;
    ensure!(
        answer.status == 200,
        "{PODS}: {}: {}",
        answer.status,
        answer.body
    );
    ensure!(answer.is_local == is_local, "local: {}", answer.is_local);
    let list: Value = serde_json::from_str(&answer.body)?;
    let items = list["items"].as_array().context("no list")?;
    let names = items.iter().map(|it| it["metadata"]["name"].to_string());
    Ok(names.collect())
}

/// Asks as a program in the pod does.
fn ask(world: &World, path: &str, with_token: bool) -> Result<Answer> {
    let pod = running(world, APP, MAIN)?;
    ask_trusting(&pod, &authority_path(&pod), path, with_token)
}

fn ask_trusting(pod: &Container, authority: &Path, path: &str, with_token: bool) -> Result<Answer> {
    let host = pod.variable("KUBERNETES_SERVICE_HOST")?;
    let port = pod.variable("KUBERNETES_SERVICE_PORT")?;
    ensure!(host == ADDRESS, "the pod is led to {host}");
    let mut command = Command::new("nsenter");
    command.args(["--target", &pod.pid.to_string(), "--net"]);
    // An API server makes other JSON for curl, for people to read: not what programs ask for.
    let agent = ["--user-agent", "app"];
    command.args([
        "curl",
        "-sS",
        "-m",
        "10",
        "--include",
        "--http1.1",
        "--cacert",
    ]);
    command.arg(authority);
    command.args(agent);
    if with_token {
        let token = pod.read(&format!("{ACCOUNT}/token"))?;
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    command.arg(format!("https://{host}:{port}{path}"));
    let said = output(&mut command, KUBECTL_TIME)?;
    Answer::parse(&said).with_context(|| said.clone())
}

impl Answer {
    fn parse(said: &str) -> Option<Self> {
        let (head, body) = said.split_once("\r\n\r\n")?;
        let head = head.to_lowercase();
        Some(Self {
            status: head.split(' ').nth(1)?.parse().ok()?,
            is_local: head.contains("\r\nculvert-hub: local"),
            body: body.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_local_if_their_head_says_so() {
        let said = |header: &str| format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n{{}}");
        let local = Answer::parse(&said("Culvert-Hub: local; age=3")).unwrap();
        assert_eq!(
            (local.status, local.is_local, &*local.body),
            (200, true, "{}")
        );
        assert!(!Answer::parse(&said("Date: today")).unwrap().is_local);
    }
}
