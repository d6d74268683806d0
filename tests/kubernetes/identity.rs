//! An agent's identity by the token of its pod: enrolment, refusals, and the authority that the
//! proxies share.

pub(crate) mod site;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::{wait, workspace};
use serde_json::json;

use crate::cluster::{DEADLINE, apply, get, pod, token, with_server};
use crate::loopback::{echo, echo_backend};
use crate::proxy::Proxy;
use site::{
    Agent, ENROLLED_AGAIN, NOT_ENROLLED, StateDisk, agent_token, create_objects, new_authority,
};

/// Long enough to be used, and short enough to be renewed within a test, after about 40 s.
const SHORT_LIVED: [&str; 2] = ["--certificate-lifetime", "60s"];

/// Since Kubernetes 1.30 the review of a pod's token names its node. Before, the proxy has to read
/// the pod.
const NODE_CLAIM_SINCE: u32 = 30;

#[test]
fn a_pod_becomes_its_node_by_its_token_and_needs_it_no_more() {
    with_server(enrolment);
}

fn enrolment(server: &mut ApiServer) -> Result<()> {
    create_objects(server)?;
    let (backend, target) = backend("edge-1")?;
    let mut agent = Agent::start(
        server,
        "agent",
        &agent_token(server, "agent", "edge-1")?,
        backend,
    )?;
    agent.wait_for_log(
        NOT_ENROLLED,
        &[("reason", "ca.crt"), ("reason", "ConfigMap culvert-agent")],
    )?;
    ensure!(
        agent.missing()?.contains("ConfigMap culvert-agent"),
        "readiness says what it waits for"
    );

    // Both start at once; one of them creates the authority.
    let mut proxies = [
        Proxy::start(server, "proxy-1", &[])?,
        Proxy::start(server, "proxy-2", &[])?,
    ];
    let both = proxies.each_ref().map(|proxy| proxy.agents.to_string());
    agent.mount_until(server, "both proxies", |_, told| {
        both.iter().all(|one| told.contains(one))
    })?;
    let [one, other] = proxies.each_ref().map(Proxy::authority);
    ensure!(one? == other?, "they share one authority");
    let secret = get(server, &["secret", "-n", "culvert-system", "culvert-ca"])?;
    ensure!(secret["type"] == "kubernetes.io/tls", "{}", secret["type"]);
    for proxy in &mut proxies {
        proxy.wait_for_stream(&target)?;
    }
    let by_claim = server.minor_version()? >= NODE_CLAIM_SINCE;
    ensure!(
        asked_for_pods(server)? != by_claim,
        "the node comes from the token if that names it: {by_claim}"
    );
    ensure!(
        lasts(&agent.state("identity.pem"), 23)? && !lasts(&agent.state("identity.pem"), 25)?,
        "24 h"
    );

    // From here on, neither the API server nor the token is needed.
    let reviews = reviews(server)?;
    server.stop()?;
    agent.set_token(None)?;
    agent.restart()?;
    for proxy in &mut proxies {
        proxy.wait_for_stream(&target)?;
        proxy.restart()?;
        proxy.wait_for_stream(&target)?;
    }
    server.resume()?;

    // The pod is replaced. Its successor enrols by itself, without further requests to the API
    // server.
    agent.set_token(Some(&agent_token(server, "agent-later", "edge-1")?))?;
    agent.wait_for_log(ENROLLED_AGAIN, &[])?;
    let later = self::reviews(server)?;
    ensure!(
        later == reviews + 1,
        "{reviews} reviews before, {later} after"
    );

    // The same state directory on another node, as from a copied disk: the agent does not continue
    // as the first node.
    agent.set_token(Some(&agent_token(server, "agent-moved", "edge-2")?))?;
    wait::until("the agent ends, to start over", DEADLINE, || {
        ensure!(agent.process.check().is_err(), "it runs");
        Ok(())
    })?;
    ensure!(
        agent.process.log().contains("was edge-1 and is edge-2 now"),
        "{}",
        agent.process.log()
    );
    agent.start_again()?;
    proxies[0].wait_for_stream(&target.replace("edge-1", "edge-2"))?;
    Ok(())
}

/// k3s#875, spiffe/spire#766. Here the pod is made again on such a disk, as after an eviction.
#[test]
fn a_new_pod_on_a_disk_that_takes_nothing_becomes_its_node_and_stays_it() {
    with_server(|server| on_full_disks(server));
}

fn on_full_disks(server: &ApiServer) -> Result<()> {
    const NOT_STORED: &str = "culvert_agent_certificate_renewals_total{outcome=\"not_stored\"} ";
    create_objects(server)?;
    let mut proxy = Proxy::start(server, "proxy", &SHORT_LIVED)?;
    let mut agents = Vec::new();
    for (node, disk) in [("edge-1", StateDisk::Full), ("edge-2", StateDisk::ReadOnly)] {
        let (backend, target) = backend(node)?;
        let token = agent_token(server, node, node)?;
        let agent = Agent::start_on(server, node, &token, backend, disk)?;
        agent.mount_until(server, "the proxy", |_, told| {
            told.contains(&proxy.agents.to_string())
        })?;
        drop(proxy.wait_for_stream(&target)?);
        ensure!(!agent.seen("identity.pem").exists(), "{disk:?} takes files");
        agents.push((agent, disk, target));
    }
    for (agent, disk, target) in &agents {
        wait::until("a renewal that is not stored", DEADLINE, || {
            let metrics = agent.metrics()?;
            let mut lines = metrics.lines();
            let count = lines.find_map(|line| line.strip_prefix(NOT_STORED));
            ensure!(
                count.is_some_and(|count| count != "0"),
                "{disk:?}: {count:?}"
            );
            Ok(())
        })?;
        let ready = agent.missing()?;
        ensure!(
            ready.contains("200 OK") && ready.contains("not stored"),
            "{ready}"
        );
        proxy.restart()?;
        drop(proxy.wait_for_stream(target)?);
        agent.free(*disk)?;
        wait::until("the certificate is stored", DEADLINE, || {
            ensure!(agent.seen("identity.pem").exists(), "no file");
            let ready = agent.missing()?;
            ensure!(!ready.contains("not stored"), "{ready}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_authority_is_rotated_and_replaced_and_streams_go_on_until_their_certificates_end() {
    with_server(|server| rotation(server));
}

fn rotation(server: &ApiServer) -> Result<()> {
    create_objects(server)?;
    let (backend, target) = backend("edge-1")?;
    let mut proxy = Proxy::start(server, "proxy", &SHORT_LIVED)?;
    let mut agent = Agent::start(
        server,
        "agent",
        &agent_token(server, "agent", "edge-1")?,
        backend,
    )?;
    agent.mount_until(server, "the proxy", |_, told| {
        told.contains(&proxy.agents.to_string())
    })?;
    let mut stream = proxy.wait_for_stream(&target)?;
    let old = certificates_of(&proxy.authority()?);
    let (new, key) = new_authority(server.folder())?;

    // The new authority is first trusted, then signs. Every program sees each step before the next
    // one.
    let old_key = key_of(&proxy.authority()?);
    secret(server, &format!("{old}{new}"), &old_key)?;
    agent.mount_until(server, "old and new", |ca, _| {
        ca.matches("BEGIN").count() == 2
    })?;
    secret(server, &format!("{new}{old}"), &key)?;
    agent.mount_until(server, "new and old", |ca, _| {
        ca.starts_with(&first_lines(&new))
    })?;
    echo(&mut stream)?;
    wait::until("a certificate of the new authority", DEADLINE, || {
        signed_by(&agent.state("identity.pem"), &new, server.folder())
    })?;
    secret(server, &new, &key)?;
    agent.mount_until(server, "the new one alone", |ca, _| {
        ca.matches("BEGIN").count() == 1
    })?;
    agent.wait_for_log("certificate renewed", &[])?;
    drop(proxy.wait_for_stream(&target)?);

    // The authority is replaced in one step, so no proxy knows any agent's certificate: the agents
    // enrol again.
    let (third, third_key) = new_authority(server.folder())?;
    secret(server, &third, &third_key)?;
    agent.mount_until(server, "the third one", |ca, _| {
        ca.starts_with(&first_lines(&third))
    })?;
    agent.wait_for_log(ENROLLED_AGAIN, &[])?;
    drop(proxy.wait_for_stream(&target)?);
    agent.restart()?;
    proxy.wait_for_stream(&target)?;

    // Invalid content leaves the authority in use unchanged.
    let before = proxy.authority()?;
    secret(server, &third, &key)?;
    proxy.process.wait_logged(
        "the cluster's authority cannot be followed, keeping the one in use",
        &[("reason", "tls.key: is not the key of the first certificate")],
        DEADLINE,
    )?;
    ensure!(proxy.authority()? == before, "the good one stays");
    // A deleted authority is created again.
    workspace::output(server.kubectl().args([
        "delete",
        "secret",
        "-n",
        "culvert-system",
        "culvert-ca",
    ]))?;
    wait::until("the Secret is there again", DEADLINE, || {
        get(server, &["secret", "-n", "culvert-system", "culvert-ca"]).map(drop)
    })?;
    ensure!(proxy.authority()? == before, "it is the same");
    Ok(())
}

#[test]
fn a_token_of_anybody_else_is_refused_with_the_reason_counted_and_never_printed() {
    with_server(|server| refusals(server));
}

fn refusals(server: &ApiServer) -> Result<()> {
    create_objects(server)?;
    let (backend, target) = backend("edge-1")?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    let good = agent_token(server, "agent", "edge-1")?;
    for refused in refused_tokens(server, &good)? {
        refused.expect(server, &mut proxy, backend)?;
    }
    let mut agent = Agent::start(server, "agent", &good, backend)?;
    agent.mount(server)?;
    proxy.wait_for_stream(&target)?;
    ensure!(
        (enrolments(&proxy, "ok")? - 1.0).abs() < f64::EPSILON,
        "only the good one"
    );
    agent.process.check()
}

/// A token that does not make its holder a node.
struct RefusedToken {
    name: &'static str,
    token: String,
    /// The outcome in the metric.
    outcome: &'static str,
    /// A part of the error that the agent gets.
    words: &'static str,
}

fn refused_tokens(server: &ApiServer, good: &str) -> Result<Vec<RefusedToken>> {
    let bound = |namespace: &str, account: &str, audience: &str, on: &str, name: &str| {
        let uid = pod(server, namespace, name, account, on)?;
        token(
            server,
            [namespace, account],
            Some(audience),
            Some((name, &uid)),
        )
    };
    let other_audience = bound(
        "culvert-system",
        "culvert-agent",
        "https://kubernetes.default.svc",
        "edge-1",
        "agent-for-others",
    )?;
    let other_account = bound("culvert-system", "default", "culvert", "edge-1", "other")?;
    let other_namespace = bound("default", "culvert-agent", "culvert", "edge-1", "agent")?;
    let cloud_node = bound(
        "culvert-system",
        "culvert-agent",
        "culvert",
        "master",
        "on-master",
    )?;
    let unbound = token(
        server,
        ["culvert-system", "culvert-agent"],
        Some("culvert"),
        None,
    )?;
    let deleted = agent_token(server, "deleted", "edge-1")?;
    delete_pod(server, "deleted")?;
    let replaced = agent_token(server, "replaced", "edge-1")?;
    delete_pod(server, "replaced")?;
    pod(
        server,
        "culvert-system",
        "replaced",
        "culvert-agent",
        "edge-2",
    )?;
    let account = "wrong_account";
    let gone = "its pod is gone";
    let unknown = "the API server does not accept the token";
    let cases = [
        (
            "no-token",
            "hello".to_owned(),
            "malformed_token",
            "this is not a service-account token",
        ),
        (
            "other-audience",
            other_audience,
            "wrong_audience",
            "set `audience: culvert`",
        ),
        (
            "other-account",
            other_account,
            account,
            "system:serviceaccount:culvert-system:default",
        ),
        (
            "other-namespace",
            other_namespace,
            account,
            "system:serviceaccount:default:culvert-agent",
        ),
        ("unbound", unbound, "not_bound", "not bound to a pod"),
        (
            "cloud-node",
            cloud_node,
            "not_an_edge",
            "master is not an edge node",
        ),
        ("deleted", deleted, "not_authenticated", gone),
        ("replaced", replaced, "not_authenticated", gone),
        ("forged", forged(good)?, "not_authenticated", unknown),
    ];
    Ok(cases
        .map(|(name, token, outcome, words)| RefusedToken {
            name,
            token,
            outcome,
            words,
        })
        .into())
}

impl RefusedToken {
    fn expect(&self, server: &ApiServer, proxy: &mut Proxy, backend: u16) -> Result<()> {
        let Self {
            name,
            token,
            outcome,
            words,
        } = self;
        let before = enrolments(proxy, outcome)?;
        let mut agent = Agent::start(server, name, token, backend)?;
        agent.mount_until(server, "the proxy", |_, told| {
            told.contains(&proxy.agents.to_string())
        })?;
        agent.wait_for_log(NOT_ENROLLED, &[("reason", words)])?;
        ensure!(
            enrolments(proxy, outcome)? > before,
            "{name} is not counted as {outcome}"
        );
        let log = proxy.process.log();
        let refusals = proxy
            .process
            .logged("certificate refused", &[("outcome", outcome)]);
        ensure!(!refusals.is_empty(), "{name}: {log}");
        let secret = token.rsplit('.').next().unwrap_or(token);
        let printed = log.contains(secret) || agent.process.log().contains(secret);
        ensure!(
            !printed || *name == "no-token",
            "{name}: its token is in a log"
        );
        ensure!(
            !agent.state("identity.pem").exists(),
            "{name} got a certificate"
        );
        Ok(())
    }
}

fn delete_pod(server: &ApiServer, name: &str) -> Result<()> {
    let delete = [
        "delete",
        "pod",
        "-n",
        "culvert-system",
        name,
        "--force",
        "--grace-period=0",
    ];
    workspace::output(server.kubectl().args(delete)).map(drop)
}

#[test]
fn connect_reaches_direct_ranges_from_the_proxy_itself_and_nothing_else() {
    with_server(|server| direct(server));
}

fn direct(server: &ApiServer) -> Result<()> {
    create_objects(server)?;
    let mut proxy = Proxy::start(server, "proxy", &["--direct", "127.0.0.0/8"])?;
    let target = format!("127.0.0.1:{}", echo_backend()?);
    drop(proxy.wait_for_stream(&target)?);
    proxy.process.wait_logged(
        "stream ended",
        &[
            ("original_dst", &target),
            ("mechanism", "direct"),
            ("bytes_to_backend", "12"),
        ],
        DEADLINE,
    )?;
    let explained = proxy.why(&target)?;
    ensure!(
        explained.contains("direct: dialled from the proxy itself") && explained.contains("ok:"),
        "{explained}"
    );
    // The cloud node of the cluster is dialled too. Here its documentation address does not answer.
    wait::until("the cloud node", DEADLINE, || {
        let cloud = proxy.why("master:10250")?;
        ensure!(
            cloud.contains("cloud node master") && cloud.contains("192.0.2.10:10250"),
            "{cloud}"
        );
        Ok(())
    })?;
    for refused in ["192.0.2.1:443", "nowhere.example:443"] {
        let answer = proxy
            .stream(refused)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        ensure!(answer.starts_with("HTTP/1.1 403"), "{refused}: {answer}");
    }
    Ok(())
}

/// Starts an echo. Returns its port, and the name by which clients dial it on a node.
fn backend(node: &str) -> Result<(u16, String)> {
    let port = echo_backend()?;
    Ok((port, format!("{node}:{port}")))
}

/// The same token with another signature.
fn forged(token: &str) -> Result<String> {
    let (signed, signature) = token.rsplit_once('.').context("a JWT")?;
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    Ok(format!("{signed}.{first}{}", &signature[1..]))
}

/// The number of enrolments by pods' tokens with this outcome.
fn enrolments(proxy: &Proxy, outcome: &str) -> Result<f64> {
    let series =
        format!("culvert_proxy_enrolments_total{{request=\"join_account\",outcome=\"{outcome}\"}}");
    Ok(proxy.metric(&series)?.unwrap_or_default())
}

/// The number of tokens that the API server reviewed.
fn reviews(server: &ApiServer) -> Result<usize> {
    let log = std::fs::read_to_string(server.audit_log())?;
    Ok(log
        .lines()
        .filter(|line| line.contains("\"resource\":\"tokenreviews\""))
        .count())
}

/// Whether a proxy requested a pod: requests of kubectl do not count, nor those of the API server,
/// which checks whether a token's pod exists.
fn asked_for_pods(server: &ApiServer) -> Result<bool> {
    let log = std::fs::read_to_string(server.audit_log())?;
    let mut pods = log
        .lines()
        .filter(|line| line.contains(r#""resource":"pods""#) && line.contains(r#""verb":"get""#));
    let others = [
        r#""userAgent":"kubectl"#,
        r#""username":"system:apiserver""#,
    ];
    Ok(pods.any(|line| others.iter().all(|other| !line.contains(other))))
}

/// Whether a certificate is still valid after that many hours.
fn lasts(file: &Path, hours: u32) -> Result<bool> {
    let seconds = (hours * 3600).to_string();
    let status = Command::new("openssl")
        .args(["x509", "-noout", "-checkend", &seconds, "-in"])
        .arg(file)
        .output()?;
    Ok(status.status.success())
}

fn signed_by(file: &Path, authority: &str, folder: &Path) -> Result<()> {
    let trusted = folder.join("trusted.pem");
    std::fs::write(&trusted, authority)?;
    workspace::output(
        Command::new("openssl")
            .args(["verify", "-CAfile"])
            .arg(trusted)
            .arg(file),
    )
    .map(drop)
}

/// Replaces the content of the Secret.
fn secret(server: &ApiServer, certificates: &str, key: &str) -> Result<()> {
    apply(
        server,
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "culvert-system", "name": "culvert-ca"},
            "type": "kubernetes.io/tls", "stringData": {"tls.crt": certificates, "tls.key": key}}),
    )
}

fn certificates_of(pem: &str) -> String {
    pem.find("-----BEGIN CERTIFICATE")
        .map(|start| pem[start..].to_owned())
        .unwrap_or_default()
}

fn key_of(pem: &str) -> String {
    pem.replace(&certificates_of(pem), "")
}

fn first_lines(pem: &str) -> String {
    pem.lines()
        .take(4)
        .map(|line| format!("{line}\n"))
        .collect()
}
