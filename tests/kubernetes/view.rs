//! The view of proxies, with a real API server: it says whose a token is and what RBAC
//! allows, and its proxy for pods is the way there. Nothing runs the pods here: the proxy is a process
//! of this host, whose address the pod's object has.

pub(crate) mod site;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use culvert_api::view::USER_SESSIONS;
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, edge, token, with_server};
use site::{Account, NAMESPACE, Role, Running, Site, json_of, unbind};

/// Since Kubernetes 1.26 kubectl asks plugins for completions.
const PLUGIN_COMPLETION_SINCE: u32 = 26;

#[test]
fn a_user_with_the_role_reads_without_exec_and_changes_nothing() {
    with_server(|server| {
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        edge(server, "edge-1", "192.0.2.71")?;
        wait::until("the node is listed", DEADLINE, || {
            let nodes = json_of(&reader.culvert(&["nodes"])?)?;
            ensure!(nodes["nodes"][0]["node"] == "edge-1", "{nodes:#}");
            Ok(())
        })?;
        let status = json_of(&reader.culvert(&["status"])?)?;
        let row = &status["proxies"][0];
        ensure!(
            row["error"].is_null() && row["version"].is_string(),
            "{status:#}"
        );
        // No redirector runs here, and that is no error.
        ensure!(row["steers"] == "-", "{status:#}");
        for words in [
            &["streams"][..],
            &["why", "edge-1"],
            &["node", "edge-1"],
            &["observe", "--last", "5"],
        ] {
            let asked = reader.culvert(words)?;
            let said = String::from_utf8_lossy(&asked.stderr);
            ensure!(!said.contains("forbidden"), "{words:?}: {asked:?}");
            let why = String::from_utf8_lossy(&asked.stdout);
            ensure!(!why.contains("view: "), "{words:?}: {asked:?}");
        }
        for words in [
            &["node", "remove", "edge-1"][..],
            &["token", "list"],
            &["token", "create", "edge-2"],
            &["connect", "edge-1:22"],
        ] {
            let asked = reader.culvert(words)?;
            ensure!(!asked.status.success(), "{words:?}: {asked:?}");
        }
        let nodes = json_of(&reader.culvert(&["nodes"])?)?;
        ensure!(nodes["nodes"][0]["node"] == "edge-1", "{nodes:#}");
        // It was not by exec, which this user may not.
        let may = ["auth", "can-i", "create", "pods/exec", "-n", NAMESPACE];
        let may = reader.kubectl(server).args(may).output()?;
        ensure!(!may.status.success(), "{may:?}");
        Ok(())
    });
}

#[test]
fn nobody_else_reads() {
    with_server(|server| {
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        let passer = site.account(server, "passer", Role::Way)?;
        // The way is not enough.
        let asked = json_of(&passer.culvert(&["status"])?)?;
        let row = &asked["proxies"][0];
        let error = row["error"].as_str().context("no error")?;
        ensure!(row["state"] == "no answer", "{row:#}");
        ensure!(error.contains("proxies.culvert.dev"), "{row:#}");
        // A user who may exec can ask for the view too.
        let admin = Account {
            kubeconfig: server.kubeconfig(),
            token: String::new(),
        };
        let asked = json_of(&admin.culvert(&["status", "--view"])?)?;
        ensure!(asked["proxies"][0]["error"].is_null(), "{asked:#}");

        let other_audience = token(server, [NAMESPACE, "reader"], Some("culvert"), None)?;
        let own_audience = token(server, [NAMESPACE, "reader"], Some("culvert-view"), None)?;
        let passers = token(server, [NAMESPACE, "passer"], Some("culvert-view"), None)?;
        for (token, status) in [
            // A user who may read is told how.
            (reader.token.as_str(), 426),
            (own_audience.as_str(), 426),
            (passer.token.as_str(), 403),
            (passers.as_str(), 403),
            (other_audience.as_str(), 401),
            ("a.b.c", 401),
            ("", 401),
        ] {
            ensure!(site.ask(token)? == status, "{status}: {}", site.ask(token)?);
        }
        // A permission that is withdrawn ends.
        unbind(server, "reader")?;
        wait::until("the permission has ended", DEADLINE, || {
            let status = site.ask(&own_audience)?;
            ensure!(status == 403, "{status}");
            Ok(())
        })
    });
}

#[test]
fn one_who_asks_too_much_is_refused_and_others_are_not() {
    with_server(|server| {
        let site = Site::start(server)?;
        let greedy = site.account(server, "greedy", Role::View)?;
        let other = site.account(server, "other", Role::View)?;
        let mut observers = Vec::new();
        wait::until("the user has all connections", DEADLINE, || {
            // One that was late on a busy machine has ended.
            observers.retain_mut(Running::is_running);
            while observers.len() < USER_SESSIONS {
                observers.push(greedy.observe()?);
            }
            let asked = greedy.culvert(&["streams"])?;
            let said = String::from_utf8_lossy(&asked.stderr);
            ensure!(said.contains("close some"), "{asked:?}");
            Ok(())
        })?;
        let streams = json_of(&other.culvert(&["streams"])?)?;
        ensure!(streams["unanswered"] == json!([]), "{streams:#}");
        drop(observers);
        wait::until("the user is served again", DEADLINE, || {
            let streams = json_of(&greedy.culvert(&["streams"])?)?;
            ensure!(streams["unanswered"] == json!([]), "{streams:#}");
            Ok(())
        })?;
        // Guesses cost the API server a few questions.
        wait::until("an address that guesses has to wait", DEADLINE, || {
            let status = site.ask("a.b.c")?;
            ensure!(status == 429, "{status}");
            Ok(())
        })
    });
}

#[test]
fn what_is_followed_ends_when_the_right_is_withdrawn() {
    with_server(|server| {
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        let mut observer = reader.observe()?;
        let user = format!("system:serviceaccount:{NAMESPACE}:reader");
        site.proxy
            .process
            .wait_logged("view opened", &[("user", &user)], DEADLINE)?;
        ensure!(observer.is_running(), "it has ended before");
        unbind(server, "reader")?;
        wait::until("it ends", DEADLINE, || {
            ensure!(!observer.is_running(), "it follows");
            Ok(())
        })?;
        let closed = "a session of the view was closed";
        site.proxy
            .process
            .wait_logged(closed, &[("user", &user)], DEADLINE)
    });
}

#[test]
fn a_connectivity_test_of_many_nodes_keeps_to_the_limits_of_one_user() {
    with_server(|server| {
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        for number in 0..2 * USER_SESSIONS {
            edge(
                server,
                &format!("edge-{number}"),
                &format!("192.0.2.{}", 100 + number),
            )?;
        }
        let count = 2 * USER_SESSIONS;
        wait::until("all are listed", DEADLINE, || {
            let nodes = json_of(&reader.culvert(&["nodes"])?)?;
            let listed = nodes["nodes"].as_array().context("no nodes")?.len();
            ensure!(listed == count, "{nodes:#}");
            Ok(())
        })?;
        let tested = json_of(&reader.culvert(&["connectivity-test"])?)?;
        ensure!(tested["tried"] == count, "{tested:#}");
        for node in tested["nodes"].as_array().context("no nodes")? {
            let broken = node["from"][0]["broken"].as_str().unwrap_or_default();
            // None has an agent. Refusals would be of the proxy or of the kernel's page.
            let is_refused = broken.starts_with("proxy:") || broken.starts_with("kernel:");
            ensure!(!broken.is_empty() && !is_refused, "{node:#}");
        }
        Ok(())
    });
}

#[test]
fn kubectl_completes_its_plugin_with_the_names_of_nodes() {
    with_server(|server| {
        if server.minor_version()? < PLUGIN_COMPLETION_SINCE {
            return Ok(());
        }
        let site = Site::start(server)?;
        let reader = site.account(server, "reader", Role::View)?;
        edge(server, "edge-1", "192.0.2.71")?;
        let plugins = tempfile::tempdir()?;
        for name in ["kubectl-culvert", "kubectl_complete-culvert"] {
            symlink(workspace::binary("culvert"), plugins.path().join(name))?;
        }
        // kubectl gives its user an answer within a moment or none.
        wait::until("the node is proposed", DEADLINE, || {
            let completed = complete(server, &reader, plugins.path(), &["why", "ed"])?;
            let said = String::from_utf8_lossy(&completed.stdout);
            ensure!(said.lines().any(|line| line == "edge-1"), "{completed:?}");
            ensure!(said.lines().any(|line| line == ":4"), "{completed:?}");
            Ok(())
        })?;
        let completed = complete(server, &reader, plugins.path(), &["stat"])?;
        let said = String::from_utf8_lossy(&completed.stdout);
        ensure!(said.starts_with("status\t"), "{completed:?}");
        Ok(())
    });
}

#[test]
fn the_view_needs_a_cluster() {
    let mut proxy = Command::new(workspace::binary("culvert-proxy"));
    let refused = proxy.args(["--view-listen", "127.0.0.1:0"]).output();
    let refused = refused.expect("run it");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("--kubernetes"),
        "{said}"
    );
}

/// What kubectl proposes for the last of the words after `kubectl culvert`, with plugins of a folder.
fn complete(server: &ApiServer, user: &Account, plugins: &Path, words: &[&str]) -> Result<Output> {
    let mut kubectl = user.kubectl(server);
    kubectl.env("PATH", plugins);
    Ok(kubectl
        .args(["__complete", "culvert"])
        .args(words)
        .output()?)
}
