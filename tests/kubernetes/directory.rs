//! Nodes and VIPs of a cluster: how the proxy reads them, what it does without the API server, and
//! that proxies agree.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use culvert_lab::apiserver::ApiServer;
use culvert_lab::host::Host;
use culvert_lab::{Lab, dns, skip, wait, workspace};
use serde_json::{Value, json};

use crate::cluster::{DEADLINE, apply, config_map, edge, get, node, set_status, with_server};
use crate::proxy::Proxy;

/// Seconds since the API server last confirmed the directory.
fn age(proxy: &Proxy) -> Result<f64> {
    proxy
        .metric("culvert_proxy_directory_age_seconds")?
        .context("no age")
}

/// The count of Node events with this outcome.
fn count(proxy: &Proxy, outcome: &str) -> Result<f64> {
    let series = format!("culvert_proxy_node_events_total{{outcome=\"{outcome}\"}}");
    Ok(proxy.metric(&series)?.unwrap_or_default())
}

fn delete(server: &ApiServer, what: &[&str]) -> Result<()> {
    workspace::output(server.kubectl().arg("delete").args(what)).map(drop)
}

/// IPv4 VIPs by node, as a proxy lists them.
fn vips(proxy: &Proxy) -> Result<BTreeMap<String, String>> {
    let listed = proxy.nodes()?;
    let rows = listed.lines().filter(|line| !line.starts_with('*'));
    let cells = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    Ok(cells
        .map(|cells| (cells[0].to_owned(), cells[3].to_owned()))
        .collect())
}

/// The host part of each node in the cluster's first ConfigMap, and its version.
fn assigned(server: &ApiServer) -> Result<(BTreeMap<String, u32>, String)> {
    assigned_in(server, "culvert-vips")
}

/// The same in one of them.
fn assigned_in(server: &ApiServer, name: &str) -> Result<(BTreeMap<String, u32>, String)> {
    let map = get(server, &["configmap", "-n", "culvert-system", name])?;
    let vips: Value = serde_json::from_str(map["data"]["vips"].as_str().context("no vips")?)?;
    let version = map["metadata"]["resourceVersion"]
        .as_str()
        .context("no version")?;
    Ok((
        serde_json::from_value(vips["held"].clone())?,
        version.to_owned(),
    ))
}

fn wait_until_gone(proxy: &Proxy, node: &str) -> Result<()> {
    wait::until(&format!("no {node}"), DEADLINE, || {
        ensure!(!vips(proxy)?.contains_key(node), "still there");
        Ok(())
    })
}

#[test]
fn nodes_come_change_and_go_with_their_vips_and_heartbeats_do_nothing() {
    with_server(|server| life_of_a_node(server));
}

fn life_of_a_node(server: &ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    node(server, "master-1", "192.0.2.10", &json!({}))?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    proxy.wait_for_node("edge-1", &["10.0.3.7", "198.18.0.1", "10250"])?;
    ensure!(
        !vips(&proxy)?.contains_key("master-1"),
        "a cloud node is none of the listed"
    );
    ensure!(
        assigned(server)?.0 == BTreeMap::from([("edge-1".to_owned(), 1)]),
        "{:?}",
        assigned(server)?
    );

    workspace::output(server.kubectl().args([
        "label",
        "node",
        "edge-1",
        "node-restriction.kubernetes.io/culvert-ports=8080.9256",
    ]))?;
    proxy.wait_for_node("edge-1", &["8080,9100,9256"])?;
    edge(server, "edge-2", "192.0.2.10")?;
    proxy.wait_for_node("edge-2", &["192.0.2.10*", "198.18.0.2"])?;
    let reason = "192.0.2.10 of edge-2 is also the address of the cloud node master-1";
    ensure!(proxy.nodes()?.contains(reason), "{}", proxy.nodes()?);

    heartbeats_do_nothing(server, &proxy)?;

    delete(server, &["node", "edge-1"])?;
    wait_until_gone(&proxy, "edge-1")?;
    edge(server, "edge-3", "10.0.3.9")?;
    proxy.wait_for_node("edge-3", &["198.18.0.3"])?;
    edge(server, "edge-1", "10.0.3.70")?;
    proxy.wait_for_node("edge-1", &["10.0.3.70", "198.18.0.1"])?;

    workspace::output(server.kubectl().args([
        "label",
        "node",
        "edge-1",
        "node-restriction.kubernetes.io/culvert-edge-",
    ]))?;
    wait_until_gone(&proxy, "edge-1")?;
    let refused = proxy.control(&["token", "create", "edge-1"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        said.contains("label the Node edge-1 as --node-selector says"),
        "{said}"
    );
    Ok(())
}

fn heartbeats_do_nothing(server: &ApiServer, proxy: &Proxy) -> Result<()> {
    let before = (
        count(proxy, "unchanged")?,
        count(proxy, "changed")?,
        assigned(server)?,
    );
    for minute in 0..3 {
        let time = format!("2026-11-21T10:0{minute}:00Z");
        let status = json!({
            "addresses": [{"type": "InternalIP", "address": "10.0.3.7"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]});
        set_status(server, "/api/v1/nodes/edge-1", &status)?;
    }
    wait::until("three heartbeats", DEADLINE, || {
        ensure!(
            count(proxy, "unchanged")? >= before.0 + 3.0,
            "not all seen yet"
        );
        Ok(())
    })?;
    ensure!(
        (count(proxy, "changed")?, assigned(server)?) == (before.1, before.2),
        "and they changed something"
    );
    Ok(())
}

#[test]
fn without_the_api_server_the_last_state_serves_and_says_how_old_it_is() {
    with_server(outage);
}

fn outage(server: &mut ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    proxy.wait_for_node("edge-1", &["10.0.3.7", "198.18.0.1"])?;
    let range = proxy.nodes()?;
    ensure!(age(&proxy)?.abs() < f64::EPSILON, "current");

    server.stop()?;
    old(&proxy)?;
    ensure!(proxy.nodes()? == range, "nothing changed");
    proxy.restart()?;
    proxy.wait_for_node("edge-1", &["10.0.3.7", "198.18.0.1"])?;
    ensure!(proxy.nodes()? == range, "nor after a restart");
    old(&proxy)?;

    server.resume()?;
    wait::until("the directory is current", DEADLINE, || {
        ensure!(age(&proxy)?.abs() < f64::EPSILON, "{} s old", age(&proxy)?);
        Ok(())
    })?;
    edge(server, "edge-2", "10.0.3.8")?;
    proxy.wait_for_node("edge-2", &["198.18.0.2"])
}

fn old(proxy: &Proxy) -> Result<()> {
    wait::until("the directory says how old it is", DEADLINE, || {
        let listed = proxy.control(&["nodes"]).output()?;
        let said = String::from_utf8_lossy(&listed.stderr).into_owned();
        ensure!(
            said.contains("the API server last confirmed these nodes") && said.contains(" s ago"),
            "{said}"
        );
        ensure!(age(proxy)? > 0.0, "no age");
        Ok(())
    })
}

#[test]
fn proxies_agree_on_vips_while_both_allocate_and_after_they_were_lost() {
    with_server(|server| agreement(server));
}

fn agreement(server: &ApiServer) -> Result<()> {
    let proxies = [
        Proxy::start(server, "proxy-1", &[])?,
        Proxy::start(server, "proxy-2", &[])?,
    ];
    for from in [0, 20, 40] {
        let nodes: Vec<Value> = (from..from + 20)
            .map(|number| bare_edge(&format!("edge-{number:02}")))
            .collect();
        apply(
            server,
            &json!({"apiVersion": "v1", "kind": "List", "items": nodes}),
        )?;
    }
    let agreed = all_agree(&proxies, 60)?;
    ensure!(
        agreed.values().collect::<BTreeSet<_>>().len() == 60,
        "one VIP for each: {agreed:?}"
    );

    delete(
        server,
        &["configmap", "-n", "culvert-system", "culvert-vips"],
    )?;
    delete(server, &["node", "edge-00"])?;
    apply(server, &bare_edge("aaa"))?;
    let after = wait::until("both have the new node", DEADLINE, || {
        let after = all_agree(&proxies, 60)?;
        ensure!(
            after.contains_key("aaa") && !after.contains_key("edge-00"),
            "{after:?}"
        );
        Ok(after)
    })?;
    for (node, vip) in agreed.iter().filter(|(node, _)| node.as_str() != "edge-00") {
        ensure!(
            after[node] == *vip,
            "{node} moved from {vip} to {}",
            after[node]
        );
    }
    ensure!(
        !agreed.values().any(|vip| *vip == after["aaa"]),
        "{} is used again",
        after["aaa"]
    );

    let mut other = Proxy::start(server, "other", &["--vip4-range", "10.9.0.0/16"])?;
    wait::until(
        "a proxy with another range says what to give",
        DEADLINE,
        || {
            other.process.check()?;
            let advice = [("reason", "give --vip4-range 198.18.0.0/15")];
            let advised = other
                .process
                .log_lines()
                .iter()
                .any(|line| line.has(&advice));
            ensure!(advised, "{}", other.process.log());
            Ok(())
        },
    )?;
    ensure!(
        vips(&other)?.is_empty() && all_agree(&proxies, 60)? == after,
        "it changes nothing"
    );
    Ok(())
}

#[test]
fn nodes_for_which_one_config_map_has_no_vips_have_those_of_a_second_one() {
    with_server(|server| second_config_map(server));
}

/// The VIPs of an earlier version, in one ConfigMap: all host parts of its block are taken.
fn second_config_map(server: &ApiServer) -> Result<()> {
    let usable = (1..8192_u32).filter(|part| !matches!(part & 0xff, 0 | 0xff));
    let held: BTreeMap<String, u32> = usable.map(|part| (format!("e{part}"), part)).collect();
    let data = json!({
        "vip4-range": "198.18.0.0/15",
        "vip6-range": "fd00:1::/64",
        "vips": json!({"held": held, "resting": {}}).to_string(),
    });
    config_map(server, "culvert-system", "culvert-vips", &data)?;
    edge(server, "e7", "10.0.3.7")?;
    edge(server, "new-1", "10.0.3.8")?;
    let proxies = [
        Proxy::start(server, "proxy-1", &[])?,
        Proxy::start(server, "proxy-2", &[])?,
    ];
    let agreed = all_agree(&proxies, 2)?;
    ensure!(
        agreed["e7"] == "198.18.0.7" && agreed["new-1"] == "198.18.32.1",
        "{agreed:?}"
    );
    let [first, second] = ["culvert-vips", "culvert-vips-1"].map(|name| assigned_in(server, name));
    ensure!(first?.0 == BTreeMap::from([("e7".to_owned(), 7)]));
    let (second, _) = second?;
    ensure!(
        second == BTreeMap::from([("new-1".to_owned(), 8193)]),
        "{second:?}"
    );

    let (_, first_version) = assigned(server)?;
    edge(server, "new-2", "10.0.3.9")?;
    let more = all_agree(&proxies, 3)?;
    ensure!(more["new-2"] == "198.18.32.2", "{more:?}");
    ensure!(
        assigned(server)?.1 == first_version,
        "a change of one ConfigMap is none of the others"
    );

    delete(
        server,
        &["configmap", "-n", "culvert-system", "culvert-vips-1"],
    )?;
    edge(server, "new-3", "10.0.3.10")?;
    let after = all_agree(&proxies, 4)?;
    ensure!(
        after["new-1"] == agreed["new-1"] && after["new-3"] == "198.18.32.3",
        "{after:?}"
    );
    Ok(())
}

fn bare_edge(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"node-restriction.kubernetes.io/culvert-edge": ""}}})
}

/// The list that all proxies agree on, once it has `count` nodes.
fn all_agree(proxies: &[Proxy; 2], count: usize) -> Result<BTreeMap<String, String>> {
    wait::until(
        &format!("both list the same {count} nodes"),
        DEADLINE,
        || {
            let [one, other] = [vips(&proxies[0])?, vips(&proxies[1])?];
            ensure!(
                one.len() == count && one == other,
                "{} and {} nodes",
                one.len(),
                other.len()
            );
            Ok(one)
        },
    )
}

#[test]
fn dns_answers_cloud_nodes_with_their_own_address_in_all_zones() {
    if skip::may_make_labs() {
        with_server(|server| names(server));
    }
}

fn names(server: &ApiServer) -> Result<()> {
    edge(server, "edge-1", "10.0.3.7")?;
    workspace::output(server.kubectl().args([
        "label",
        "node",
        "edge-1",
        "node-restriction.kubernetes.io/culvert-zone=plant.example",
    ]))?;
    node(server, "master-1", "192.0.2.10", &json!({}))?;
    let mut proxy = Proxy::start(server, "proxy", &[])?;
    proxy.wait_for_node("edge-1", &["198.18.0.1"])?;
    let lab = Lab::start_test()?;
    let cloud = lab.site(Host::Cloud);
    let mut redirector = cloud.command(workspace::binary("culvert-redirector"));
    redirector
        .arg("--cgroup")
        .arg(cloud.cgroup())
        .arg("--state-dir")
        .arg(cloud.file("redirector"));
    redirector
        .arg("--directory-socket")
        .arg(proxy.directory_socket());
    redirector
        .arg("--admin-socket")
        .arg(cloud.file("redirector.sock"));
    let mut redirector = cloud.start_process("culvert-redirector", &mut redirector)?;
    let expect = |name: &str, address: Option<&str>| {
        wait::until(&format!("{name} is {address:?}"), DEADLINE, || {
            let answer = dns::ask(&lab, name, dns::A)?.first();
            ensure!(answer.as_deref() == address, "{answer:?}");
            Ok(())
        })
    };
    for name in [
        "master-1",
        "master-1.edge.internal",
        "master-1.plant.example",
    ] {
        expect(name, Some("192.0.2.10")).with_context(|| redirector.log())?;
    }
    for name in ["edge-1", "edge-1.edge.internal", "edge-1.plant.example"] {
        expect(name, Some("198.18.0.1"))?;
    }
    for name in [
        "edge-1.other.example",
        "master-1.other.example",
        "plant.example",
    ] {
        expect(name, None)?;
    }
    delete(server, &["node", "master-1"])?;
    expect("master-1.edge.internal", None)?;
    redirector.check()
}
