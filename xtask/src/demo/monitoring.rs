//! A stock Prometheus with static targets, and the results from its own API.

use anyhow::{Context, Result, ensure};
use culvert_lab::process::Process;
use culvert_lab::site::Site;
use culvert_lab::unpacked::Unpacked;
use serde_json::Value;

use super::table::Target;

/// Prometheus' port on the cloud's loopback.
pub(super) const PORT: u16 = 9090;

/// The scraped targets, and the node that must answer.
const TARGETS: [(&str, &str); 4] = [
    ("10.0.3.7:9100", "edge-1"),
    ("edge-1:9100", "edge-1"),
    ("edge-2:9100", "edge-2"),
    ("edge-3:9100", "edge-3"),
];

/// Prometheus, running in the cloud. Dropping it ends it.
pub(super) struct Monitoring<'lab> {
    site: &'lab Site,
    prometheus: Process,
}

impl<'lab> Monitoring<'lab> {
    /// Writes its configuration and starts it.
    pub(super) fn start(site: &'lab Site) -> Result<Self> {
        let config = site.file("prometheus.yml");
        let targets: Vec<String> = TARGETS
            .iter()
            .map(|(address, _)| format!("'{address}'"))
            .collect();
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n- job_name: \
             node\n  static_configs:\n  - targets: [{}]\n",
            targets.join(", ")
        );
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        // Debian's Prometheus reads the files of its web page from /usr/share/prometheus. On a
        // kernel without overlayfs there is no page, but everything else works.
        let script = r#"mount -t overlay -o lowerdir="$0/usr/share:/usr/share" overlay /usr/share; exec "$@""#;
        let mut command = site.command("sh");
        command
            .args(["-c", script])
            .arg(Unpacked::Prometheus.folder())
            .arg(Unpacked::Prometheus.program())
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                site.file("prometheus").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
        Ok(Self {
            site,
            prometheus: site.start_process("prometheus", &mut command)?,
        })
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.prometheus.check()
    }

    /// The targets, after each was scraped or found unreachable.
    pub(super) fn all_tried(&mut self) -> Result<Vec<Target>> {
        let targets = self.targets()?;
        ensure!(
            targets
                .iter()
                .all(|target| target.is_up || !target.error.is_empty()),
            "not every target was tried yet"
        );
        Ok(targets)
    }

    /// The targets, after each is up and its metrics name the node.
    pub(super) fn all_up(&mut self) -> Result<Vec<Target>> {
        let targets = self.targets()?;
        for target in &targets {
            ensure!(
                target.is_up,
                "{} is not up: {}",
                target.address,
                target.error
            );
            ensure!(
                !target.node.is_empty(),
                "{} has no node_uname_info yet",
                target.address
            );
        }
        Ok(targets)
    }

    fn targets(&mut self) -> Result<Vec<Target>> {
        self.prometheus.check()?;
        let active = self.api("/api/v1/targets")?;
        let named = self.api("/api/v1/query?query=node_uname_info")?;
        TARGETS
            .iter()
            .map(|(address, expected)| read_target(&active, &named, address, expected))
            .collect()
    }

    fn api(&self, path: &str) -> Result<Value> {
        let body = self.site.http_get(PORT, path)?;
        let mut answer: Value =
            serde_json::from_str(&body).with_context(|| format!("{path} is not JSON: {body}"))?;
        Ok(answer["data"].take())
    }
}

/// The entry of a list whose labels, which are in its field `labels`, have this address.
fn entry_of<'a>(address: &str, list: &'a Value, labels: &str) -> Option<&'a Value> {
    let mut entries = list.as_array()?.iter();
    entries.find(|entry| entry[labels]["instance"] == address)
}

fn read_target(active: &Value, named: &Value, address: &str, expected: &str) -> Result<Target> {
    let target = entry_of(address, &active["activeTargets"], "labels")
        .with_context(|| format!("Prometheus does not know {address} yet"))?;
    let node = match entry_of(address, &named["result"], "metric") {
        Some(metric) => metric["metric"]["nodename"].as_str().unwrap_or_default(),
        None => "",
    };
    Ok(Target {
        address: address.to_owned(),
        expected: expected.to_owned(),
        is_up: target["health"] == "up",
        milliseconds: target["lastScrapeDuration"].as_f64().unwrap_or_default() * 1000.0,
        node: node.to_owned(),
        error: target["lastError"].as_str().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_from_the_two_answers_of_the_api() {
        let active = serde_json::json!({"activeTargets": [
            {"labels": {"instance": "edge-2:9100"}, "health": "up", "lastScrapeDuration": 0.012, "lastError": ""}]});
        let named = serde_json::json!({"result": [{"metric": {"instance": "edge-2:9100", "nodename": "edge-2"}}]});
        let target = read_target(&active, &named, "edge-2:9100", "edge-2").unwrap();
        assert!(target.is_up && target.node == "edge-2" && target.milliseconds > 11.9);
        assert!(read_target(&active, &named, "edge-9:9100", "edge-9").is_err());
    }
}
