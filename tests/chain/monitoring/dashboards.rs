//! The dashboards: their form, as Grafana expects it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use culvert_lab::monitoring::{DASHBOARDS, dashboard, list, text};
use serde_json::Value;

/// The model of Grafana 11. Later ones convert it.
const SCHEMA_VERSION: u64 = 39;
/// The columns of a dashboard.
const COLUMNS: u64 = 24;
/// The variable that Grafana itself sets.
const RATE_INTERVAL: &str = "__rate_interval";

#[test]
fn grafana_knows_the_form_of_each_dashboard() -> Result<()> {
    let mut uids = BTreeSet::new();
    for name in DASHBOARDS {
        let dashboard = dashboard(name)?;
        check(&dashboard).with_context(|| name.to_owned())?;
        let uid = text(&dashboard["uid"])?.to_owned();
        ensure!(uids.insert(uid), "{name}: its uid is that of another one");
    }
    // A link to another dashboard leads to one of them.
    for name in DASHBOARDS {
        for link in list(&dashboard(name)?["links"]) {
            let url = text(&link["url"])?;
            let uid = url.strip_prefix("/d/").context("a link elsewhere")?;
            ensure!(uids.contains(uid), "{name}: no dashboard {uid}");
        }
    }
    Ok(())
}

fn check(dashboard: &Value) -> Result<()> {
    ensure!(
        dashboard["schemaVersion"] == SCHEMA_VERSION,
        "schemaVersion"
    );
    ensure!(
        dashboard.get("id").is_none(),
        "`id` is of one Grafana's database"
    );
    let mut variables = BTreeSet::from([RATE_INTERVAL.to_owned()]);
    let defined = list(&dashboard["templating"]["list"]);
    let sources: Vec<_> = defined
        .iter()
        .filter(|it| it["type"] == "datasource")
        .collect();
    ensure!(
        matches!(sources[..], [only] if only["name"] == "datasource" && only["query"] == "prometheus"),
        "not one data source: {sources:?}"
    );
    for variable in defined {
        ensure!(
            variables.insert(text(&variable["name"])?.to_owned()),
            "{variable}: twice"
        );
        ensure!(
            variable["type"] == "datasource" || is_of_the_data_source(variable),
            "{variable}"
        );
    }
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        let title = text(&panel["title"])?;
        let id = panel["id"].as_u64().filter(|id| *id > 0);
        ensure!(
            ids.insert(id.with_context(|| format!("{title}: id"))?),
            "{title}: its id is that of another one"
        );
        for cell in covered(panel).with_context(|| format!("{title}: gridPos"))? {
            ensure!(
                cell.0 < COLUMNS && cells.insert(cell),
                "{title}: covers {cell:?}, or is too wide"
            );
        }
        check_queries(panel, &variables).with_context(|| title.to_owned())?;
    }
    ensure!(!ids.is_empty(), "no panels");
    Ok(())
}

fn is_of_the_data_source(value: &Value) -> bool {
    value["datasource"]["type"] == "prometheus" && value["datasource"]["uid"] == "${datasource}"
}

/// The columns and rows that a panel covers.
fn covered(panel: &Value) -> Option<Vec<(u64, u64)>> {
    let number = |name: &str| panel["gridPos"][name].as_u64();
    let x = number("x")?;
    let y = number("y")?;
    let w = number("w")?;
    let h = number("h")?;
    Some(
        (x..x + w)
            .flat_map(|column| (y..y + h).map(move |row| (column, row)))
            .collect(),
    )
}

fn check_queries(panel: &Value, variables: &BTreeSet<String>) -> Result<()> {
    if panel["type"] == "row" {
        return Ok(());
    }
    ensure!(
        panel["type"] == "stat" || panel["type"] == "timeseries",
        "a panel of another type"
    );
    ensure!(is_of_the_data_source(panel), "its data source");
    let targets = list(&panel["targets"]);
    ensure!(!targets.is_empty(), "no queries");
    let mut names = BTreeSet::new();
    for target in targets {
        ensure!(
            is_of_the_data_source(target),
            "the data source of a query: {target}"
        );
        ensure!(names.insert(text(&target["refId"])?), "{target}: twice");
        for used in text(&target["expr"])?.split('$').skip(1) {
            let end = used.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let name = &used[..end.unwrap_or(used.len())];
            ensure!(variables.contains(name), "no variable {name}: {target}");
        }
    }
    Ok(())
}
