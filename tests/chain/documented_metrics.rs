//! docs/metrics.md lists what the programs expose, and a stock Prometheus takes it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use culvert_lab::culvert::{AGENT_ADMIN, Options, PROXY_ADMIN, REDIRECTOR_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::hub::{self, HUB_ADMIN};
use culvert_lab::unpacked::Unpacked;
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, page};

use crate::world;

#[test]
fn the_documented_metrics_are_those_exposed_and_a_stock_prometheus_takes_them() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        world.check_greeting("edge-1", "edge-1")?;
        world.wait_for_no_streams()?;
        let _hub = hub::start(world.lab.site(Host::Edge1))?;
        let documented = page::read("metrics.md")?;
        for (host, port, prefix) in [
            (Host::Cloud, PROXY_ADMIN, "culvert_proxy_"),
            (Host::Cloud, REDIRECTOR_ADMIN, "culvert_redirector_"),
            (Host::Edge1, AGENT_ADMIN, "culvert_agent_"),
            (Host::Edge1, HUB_ADMIN, "culvert_hub_"),
        ] {
            // Round trips are shown once they have been measured.
            wait::until(
                &format!("{prefix} exposes what is documented"),
                PATIENCE,
                || {
                    let text = world.lab.site(host).http_get(port, "/metrics")?;
                    ensure!(text.ends_with("# EOF\n"), "no end: {text}");
                    let real = exposed(&text);
                    let mut written = tabled(&documented, prefix);
                    written.extend(tabled(&documented, "process_"));
                    ensure!(real == written, "exposed {real:?}\ndocumented {written:?}");
                    let unknown: Vec<_> = values(&text)
                        .into_iter()
                        .filter(|value| !documented.contains(&format!("`{value}`")))
                        .collect();
                    ensure!(
                        unknown.is_empty(),
                        "values of labels that are exposed and not documented: {unknown:?}"
                    );
                    Ok(())
                },
            )?;
        }
        scrape(world.lab)
    });
}

/// Each metric family as operators query it, with the names of its labels.
fn exposed(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut families = BTreeMap::new();
    for (family, kind) in text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
    {
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let name = format!("{family}{suffix}");
        let samples = text
            .lines()
            .filter_map(|line| line.strip_prefix(family)?.split_once('{'));
        let ours = samples.filter(|(rest, _)| ["", "_total", "_info", "_bucket"].contains(rest));
        let labels = ours.flat_map(|(_, rest)| {
            rest.split("\",")
                .filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned()))
        });
        families.insert(name, labels.collect());
    }
    families
}

/// All exposed values of labels that have a small fixed set of values.
fn values(text: &str) -> BTreeSet<&str> {
    let labels = text
        .lines()
        .filter_map(|line| Some(line.split_once('{')?.1.split_once('}')?.0));
    let pairs = labels
        .flat_map(|labels| labels.split(','))
        .filter_map(|pair| pair.split_once('='));
    let fixed = pairs.filter(|(label, _)| !["version", "le", "tunnel"].contains(label));
    fixed.map(|(_, value)| value.trim_matches('"')).collect()
}

/// Each metric family in a document's tables, with the names of its labels.
fn tabled(document: &str, prefix: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut families = BTreeMap::new();
    for line in document.lines() {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let Some(name) = cells
            .next()
            .and_then(|cell| cell.strip_prefix('`')?.strip_suffix('`'))
        else {
            continue;
        };
        if name.starts_with(prefix) {
            let labels = cells
                .next()
                .unwrap_or_default()
                .split("; ")
                .filter_map(|label| label.split('`').nth(1));
            families.insert(name.to_owned(), labels.map(str::to_owned).collect());
        }
    }
    families
}

/// Debian's Prometheus scrapes all three programs, the agent through its own tunnel.
fn scrape(lab: &Lab) -> Result<()> {
    const PORT: u16 = 9090;
    let cloud = lab.site(Host::Cloud);
    let config = cloud.file("culvert-prometheus.yml");
    let targets = format!(
        "'127.0.0.1:{PROXY_ADMIN}', '127.0.0.1:{REDIRECTOR_ADMIN}', 'edge-1:{AGENT_ADMIN}'"
    );
    let text = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n- job_name: \
         culvert\n  static_configs:\n  - targets: [{targets}]\n"
    );
    std::fs::write(&config, text)?;
    let mut command = cloud.command(Unpacked::Prometheus.program());
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            cloud.file("culvert-prometheus").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
    let mut prometheus = cloud.start_process("culvert-prometheus", &mut command)?;
    wait::until("Prometheus has taken a scrape of each", PATIENCE, || {
        prometheus.check()?;
        let series = [
            "culvert_proxy_dials_total",
            "culvert_redirector_dns_answers_total",
            "culvert_agent_dials_total",
        ];
        for name in series {
            let answer = cloud.json(PORT, &format!("/api/v1/query?query={name}"))?;
            let found = answer["data"]["result"]
                .as_array()
                .is_some_and(|found| !found.is_empty());
            if !found {
                let targets = cloud.json(PORT, "/api/v1/targets")?;
                anyhow::bail!("no {name}: {targets}");
            }
        }
        Ok(())
    })
}
