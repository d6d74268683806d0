//! A stock Prometheus with the shipped configuration and alerts scrapes real programs, under load
//! and with faults. Each panel shows something, and alerts see the faults.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, REDIRECTOR_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::hub::{self, HUB_METRICS};
use culvert_lab::monitoring::Query;
use culvert_lab::probe::Client;
use culvert_lab::process::Process;
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, monitoring};
use serde_json::{Value, json};

use crate::world::{self, ECHO, FORBIDDEN, SOURCE, World};

/// Prometheus' port on the cloud's loopback.
const PORT: u16 = 9090;
/// A port that agents may dial and where nothing listens.
const CLOSED: u16 = 10255;
/// What a lab without a cluster has no values for: step `variants` of the end-to-end suite has them.
const ABSENT: &str = "culvert_proxy_directory_age_seconds";
/// What stays 0 with one proxy, and with a hub that never had a link.
const ZERO: [&str; 4] = [
    "culvert_proxy_peers",
    "culvert_proxy_forwarded_streams",
    "culvert_proxy_refused_clients_total",
    "culvert_hub_",
];
/// Certificates that last so long are renewed within the test, and are always about to expire.
const LIFETIME: &str = "60s";
/// One more than the alerts about drift and restarts take.
const REPEATED: u32 = 4;

#[test]
fn every_panel_shows_the_load_and_the_faults_of_real_programs_and_alerts_see_them() {
    let options = Options {
        proxy: [
            "--metrics-listen=203.0.113.1:7408",
            "--certificate-lifetime",
            LIFETIME,
        ]
        .map(str::to_owned)
        .to_vec(),
        redirector: vec!["--metrics-listen=203.0.113.1:7418".to_owned()],
        agent: vec![format!("--port={HUB_METRICS}")],
        ..Options::default()
    };
    world::with(&[Host::Edge1, Host::Edge2], options, |world| {
        let _hub = hub::start(world.lab.site(Host::Edge1))?;
        let mut prometheus = Prometheus::start(world.lab)?;
        wait::until("the alerts of these settings are active", PATIENCE, || {
            prometheus.process.check()?;
            prometheus.check_alerts(&[
                "CulvertCertificateEnds",
                "CulvertHubLinkDown",
                "CulvertHubRebootUnsafe",
            ])
        })?;
        prometheus.check_alerted_series()?;
        prometheus.check_variables()?;
        break_things(world, &prometheus)?;
        for query in monitoring::queries()? {
            // Their streams end with the certificate of their tunnel.
            let _held = world.hold(format!("edge-1:{ECHO}"), 4)?;
            let _stalled = world.stall(format!("edge-1:{SOURCE}"), 4)?;
            wait::until(&query.title, PATIENCE, || {
                load(world);
                prometheus.check_panel(&query)
            })?;
        }
        let seen = [
            "CulvertCertificateEnds",
            "CulvertDialsFail",
            "CulvertHubLinkDown",
            "CulvertHubRebootUnsafe",
            "CulvertNodesOffline",
            "CulvertRestarts",
            "CulvertSteeringDrift",
        ];
        wait::until("the alerts see the faults", PATIENCE, || {
            load(world);
            prometheus.check_alerts(&seen)
        })?;
        world.culvert.redirector.kill()?;
        prometheus.wait_for_alert("CulvertProgramDown")?;
        world.culvert.proxy.kill()?;
        prometheus.wait_for_alert("CulvertNoProxy")
    });
}

/// Clients that are served, and clients that are refused in each way.
fn load(world: &World<'_>) {
    world.greeting("edge-1").ok();
    for target in [
        format!("edge-1:{FORBIDDEN}"),
        format!("edge-1:{CLOSED}"),
        "edge-9:80".to_owned(),
    ] {
        world.client(&Client::listen(target)).ok();
    }
}

/// A node goes, one joins, and others' hands are on an agent and on the rules.
fn break_things(world: &mut World<'_>, prometheus: &Prometheus<'_>) -> Result<()> {
    world.culvert.agent(1).kill()?;
    let join = world.culvert.create_token(Host::Edge3, &[])?;
    world.culvert.join(Host::Edge3, &join)?;
    for repaired in 1..=REPEATED {
        world.culvert.agent(0).kill()?;
        world.culvert.restart_agent(0, Host::Edge1)?;
        let cloud = world.lab.site(Host::Cloud);
        cloud.output("nft", ["delete", "table", "inet", "culvert"])?;
        wait::until("the table is back", PATIENCE, || {
            let name = "culvert_redirector_drift_total{what=\"nftables\",outcome=\"repaired\"}";
            let times = cloud.metric(REDIRECTOR_ADMIN, name)?;
            ensure!(times >= f64::from(repaired), "{times} times");
            Ok(())
        })?;
        wait::until("Prometheus has seen the restart", PATIENCE, || {
            let restarts =
                "changes(process_start_time_seconds{job=\"culvert-agent\",node=\"edge-1\"}[1h])";
            let seen = prometheus.values(restarts)?;
            ensure!(seen == [f64::from(repaired)], "{seen:?} of {repaired}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A running Prometheus in the cloud.
struct Prometheus<'lab> {
    lab: &'lab Lab,
    process: Process,
}

impl<'lab> Prometheus<'lab> {
    fn start(lab: &'lab Lab) -> Result<Self> {
        let cloud = lab.site(Host::Cloud);
        let file = cloud.file("monitoring.yml");
        std::fs::write(&file, config()?)?;
        let mut command = cloud.command(Unpacked::Prometheus.program());
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                cloud.file("monitoring").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
        let process = cloud.start_process("monitoring", &mut command)?;
        Ok(Self { lab, process })
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let answer = self.lab.site(Host::Cloud).json(PORT, path)?;
        ensure!(answer["status"] == "success", "{path}: {answer}");
        Ok(answer["data"].clone())
    }

    /// The values of an expression now.
    fn values(&self, expr: &str) -> Result<Vec<f64>> {
        let data = self.ask(&monitoring::path_of(expr))?;
        let result = data["result"].as_array().context("no result")?;
        result
            .iter()
            .map(|sample| {
                let value = sample["value"][1].as_str().context("no value")?;
                value.parse().with_context(|| value.to_owned())
            })
            .collect()
    }

    fn check_panel(&self, query: &Query) -> Result<()> {
        let expr = query.of_node("edge-1");
        let names = |list: &[&str]| list.iter().any(|name| expr.contains(name));
        let is_zero = names(&ZERO);
        let unless_zero = expr.strip_suffix(" > 0").filter(|_| is_zero);
        let values = self.values(unless_zero.unwrap_or(&expr))?;
        if expr == ABSENT {
            return Ok(());
        }
        ensure!(!values.is_empty(), "no data: {expr}");
        let shows = values.iter().any(|value| value.is_finite() && *value > 0.0);
        ensure!(shows || is_zero, "nothing but {values:?}: {expr}");
        Ok(())
    }

    /// Each alert is loaded, and what it names exists: a misspelled label would never fire.
    fn check_alerted_series(&self) -> Result<()> {
        let data = self.ask("/api/v1/rules")?;
        let rules = data["groups"][0]["rules"].as_array().context("no rules")?;
        ensure!(
            rules.len() == monitoring::read("rules.yaml")?.matches("- alert: ").count(),
            "{data}"
        );
        for rule in rules {
            ensure!(rule["health"] != "err", "{rule}");
            let expr = rule["query"].as_str().context("no query")?;
            let series = selectors(expr);
            ensure!(!series.is_empty(), "{expr} names nothing");
            for selector in series {
                let known = selector == ABSENT;
                wait::until(selector, PATIENCE, || {
                    ensure!(
                        known || !self.values(selector)?.is_empty(),
                        "no such series"
                    );
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// The dashboard of a node offers the nodes.
    fn check_variables(&self) -> Result<()> {
        for path in monitoring::paths_of_variables()? {
            let values = self.ask(&path)?;
            ensure!(values == json!(["edge-1", "edge-2"]), "{path}: {values}");
        }
        Ok(())
    }

    /// The names of the alerts that are pending or fire.
    fn alerts(&self) -> Result<BTreeSet<String>> {
        let data = self.ask("/api/v1/alerts")?;
        let alerts = data["alerts"].as_array().context("no alerts")?;
        let name = |alert: &Value| Some(alert["labels"]["alertname"].as_str()?.to_owned());
        Ok(alerts.iter().filter_map(name).collect())
    }

    fn check_alerts(&self, expected: &[&str]) -> Result<()> {
        let active = self.alerts()?;
        let expected: BTreeSet<_> = expected.iter().map(|name| (*name).to_owned()).collect();
        ensure!(active == expected, "{active:?}, not {expected:?}");
        Ok(())
    }

    fn wait_for_alert(&self, name: &str) -> Result<()> {
        wait::until(name, PATIENCE, || {
            let active = self.alerts()?;
            ensure!(active.contains(name), "{active:?}");
            Ok(())
        })
    }
}

/// The shipped configuration with the addresses of the lab, at the pace of a test.
fn config() -> Result<String> {
    let mut config = monitoring::read("prometheus-hosts.yaml")?;
    let rules = monitoring::folder().join("rules.yaml");
    for (shipped, here) in [
        ("cloud-1:", Host::Cloud.address().to_string() + ":"),
        ("[rules.yaml]", format!("[{}]", rules.display())),
    ] {
        ensure!(config.contains(shipped), "no {shipped}: {config}");
        config = config.replace(shipped, &here);
    }
    let pace = "scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s";
    Ok(format!("global: {{{pace}}}\n{config}"))
}

/// The metrics of an expression, with their matchers.
fn selectors(expr: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut at = 0;
    while at < expr.len() {
        let rest = &expr[at..];
        let word = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let name = &rest[..word];
        let mut end = word.max(1);
        if rest[word..].starts_with('{') {
            end = word + rest[word..].find('}').map_or(1, |close| close + 1);
        }
        let ours = ["culvert_", "process_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if ours || name == "up" {
            found.push(&rest[..end]);
        }
        at += end;
    }
    found
}

#[test]
fn the_selectors_of_an_expression_are_found() {
    let expr =
        "absent(up{job=\"a\"} == 1) or rate(culvert_x_total{o!~\"a|b\"}[5m]) / process_y > 0.5";
    assert_eq!(
        selectors(expr),
        ["up{job=\"a\"}", "culvert_x_total{o!~\"a|b\"}", "process_y"]
    );
}
