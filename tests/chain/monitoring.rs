//! Tests of deploy/monitoring: the alerts, the dashboards and the scrape configurations are valid,
//! agree with the documents, and work with a stock Prometheus that scrapes the real programs.

mod dashboards;
mod live;
mod rules;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use culvert_lab::{monitoring, page};

/// The metrics of the programs that a text of PromQL names.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("culvert_") || word.starts_with("process_"));
    ours.map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect()
}

#[test]
fn every_metric_of_an_alert_or_a_dashboard_is_documented() -> Result<()> {
    let documented = page::read("metrics.md")?;
    let mut texts = vec![("rules.yaml".to_owned(), monitoring::read("rules.yaml")?)];
    for query in monitoring::queries()? {
        texts.push((query.title, query.expr));
    }
    for (title, text) in &texts {
        for name in metrics(text) {
            ensure!(
                documented.contains(&format!("| `{name}` |")),
                "{title}: {name} is not in docs/metrics.md"
            );
        }
    }
    ensure!(texts.iter().any(|(_, text)| !metrics(text).is_empty()));
    Ok(())
}
