//! The alerts, by promtool and beside the documents; and what the scrape configurations make of
//! pods.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::unpacked::Unpacked;
use culvert_lab::{monitoring, page, workspace};
use serde_json::Value;

/// The configuration of a Prometheus in a pod, and its discovery, which Debian's is built without.
const IN_A_POD: &str = "prometheus-kubernetes.yaml";
const DISCOVERY: &str =
    "  kubernetes_sd_configs:\n  - role: pod\n    namespaces: {names: [culvert-system]}\n";
/// The label of a discovered pod that has the name of its program.
const PROGRAM: &str = "__meta_kubernetes_pod_label_app_kubernetes_io_name";

fn promtool(args: &[&str]) -> Result<String> {
    let program = Unpacked::Prometheus.folder().join("usr/bin/promtool");
    let mut command = Command::new(program);
    workspace::output(command.args(args).current_dir(monitoring::folder()))
        .context("is promtool there? `cargo xtask setup` unpacks it")
}

#[test]
fn the_alerts_fire_for_their_faults_and_for_nothing_else() -> Result<()> {
    promtool(&["check", "rules", "rules.yaml"])?;
    promtool(&["check", "config", "prometheus-hosts.yaml"])?;
    promtool(&["test", "rules", "rules_test.yaml"])?;
    let tests = monitoring::read("rules_test.yaml")?;
    for alert in alerts()?.keys() {
        let quiet = tests.contains(&format!("alertname: {alert}}}\n"));
        let fires = tests.contains(&format!("alertname: {alert}\n    exp_alerts:\n"));
        ensure!(
            quiet && fires,
            "{alert}: tested that it is quiet {quiet}, that it fires {fires}"
        );
    }
    Ok(())
}

#[test]
fn each_alert_has_a_severity_a_summary_and_a_section_that_says_what_to_do() -> Result<()> {
    let metrics = page::read("metrics.md")?;
    let troubleshooting = page::read("troubleshooting.md")?;
    let alerts = alerts()?;
    for (alert, text) in &alerts {
        let severity = ["warning", "critical"]
            .into_iter()
            .find(|severity| text.contains(&format!("labels: {{severity: {severity}}}")));
        let severity = severity.with_context(|| format!("{alert} has no severity"))?;
        let anchor = alert.to_lowercase();
        let runbook = format!("runbook_url: docs/troubleshooting.md#{anchor}\n");
        ensure!(
            text.contains("summary: ") && text.contains(&runbook),
            "{alert}: {text}"
        );
        ensure!(
            troubleshooting.contains(&format!("\n### {alert}\n\n")),
            "{alert} has no section in docs/troubleshooting.md"
        );
        let row = format!("| [{alert}](troubleshooting.md#{anchor}) | {severity} |");
        ensure!(metrics.contains(&row), "docs/metrics.md lacks {row}");
    }
    for (name, text, mark) in [
        ("metrics.md", &metrics, "| [Culvert"),
        ("troubleshooting.md", &troubleshooting, "\n### Culvert"),
    ] {
        let written = text.matches(mark).count();
        ensure!(
            written == alerts.len(),
            "docs/{name} has {written} alerts, rules.yaml {}",
            alerts.len()
        );
    }
    Ok(())
}

/// The text of each alert, by its name.
fn alerts() -> Result<BTreeMap<String, String>> {
    let text = monitoring::read("rules.yaml")?;
    let alerts = text.split("\n  - alert: ").skip(1);
    let alerts: BTreeMap<_, _> = alerts
        .filter_map(|alert| alert.split_once('\n'))
        .map(|(name, text)| (name.to_owned(), format!("{text}\n")))
        .collect();
    ensure!(alerts.len() > 1, "no alerts in rules.yaml");
    Ok(alerts)
}

#[test]
fn each_pod_is_scraped_where_its_program_serves_metrics() -> Result<()> {
    let folder = scratch();
    std::fs::create_dir_all(&folder)?;
    let config = folder.join("prometheus.yml");
    std::fs::write(&config, with_pods(&monitoring::read(IN_A_POD)?)?)?;
    let said = promtool(&[
        "check",
        "service-discovery",
        &config.display().to_string(),
        "culvert",
    ]);
    std::fs::remove_dir_all(&folder)?;
    let said: Value = serde_json::from_str(&said?).context("promtool's answer")?;
    let targets = said.as_array().into_iter().flatten();
    // In no order.
    let targets: BTreeSet<_> = targets
        .filter_map(|target| {
            let labels = target["labels"].as_object()?;
            let label = |name: &str| labels.get(name)?.as_str();
            Some([label("job")?, label("node")?, label("__address__")?].join(" "))
        })
        .collect();
    ensure!(
        targets
            == [
                "culvert-proxy master-1 10.0.0.1:7408",
                "culvert-redirector master-1 10.0.0.1:7418",
                "culvert-agent edge-1 10.0.3.7:7429",
                "culvert-proxy master-2 [fd00::2]:7408",
                "culvert-redirector master-2 [fd00::2]:7418",
                "culvert-agent edge-2 [fd10:3::7]:7429",
            ]
            .map(str::to_owned)
            .into(),
        "{said}"
    );
    Ok(())
}

fn scratch() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("culvert-discovery-{}", std::process::id()))
}

/// The configuration with pods that are written down in place of discovered ones.
fn with_pods(config: &str) -> Result<String> {
    ensure!(config.contains(DISCOVERY), "no {DISCOVERY} in {IN_A_POD}");
    let mut pods = String::from("  static_configs:\n");
    for (program, node, address) in [
        ("culvert-proxy", "master-1", "10.0.0.1"),
        ("culvert-redirector", "master-1", "10.0.0.1"),
        ("culvert-agent", "edge-1", "10.0.3.7"),
        ("culvert-proxy", "master-2", "fd00::2"),
        ("culvert-redirector", "master-2", "fd00::2"),
        ("culvert-agent", "edge-2", "fd10:3::7"),
        ("culvert-uninstall", "master-1", "10.0.0.1"),
    ] {
        pods += &format!(
            "  - targets: [{node}]\n    labels: {{{PROGRAM}: {program}, \
             __meta_kubernetes_pod_node_name: {node}, __meta_kubernetes_pod_host_ip: \"{address}\"}}\n"
        );
    }
    // The rules are elsewhere.
    Ok(config
        .replace(DISCOVERY, &pods)
        .replace("rule_files: [rules.yaml]\n", ""))
}

#[test]
fn the_pod_monitor_relabels_as_the_plain_configuration_does() -> Result<()> {
    let plain = monitoring::read(IN_A_POD)?;
    let (_, plain) = plain
        .split_once("  relabel_configs:\n")
        .context("no relabel_configs")?;
    // Its selector keeps the pods of the programs.
    let plain: Vec<_> = plain
        .lines()
        .filter(|line| !line.contains("action: keep"))
        .map(|line| {
            line.replace("source_labels", "sourceLabels")
                .replace("target_label", "targetLabel")
        })
        .collect();
    let monitor = monitoring::read("podmonitor.yaml")?;
    let (_, monitor) = monitor
        .split_once("  - relabelings:\n")
        .context("no relabelings")?;
    let monitor: Vec<_> = monitor.lines().map(|line| &line[2..]).collect();
    ensure!(plain == monitor, "{plain:#?}\n{monitor:#?}");
    Ok(())
}
