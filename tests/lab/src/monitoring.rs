//! `deploy/monitoring`, and what Grafana asks Prometheus with its dashboards.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace;

/// The dashboards.
pub const DASHBOARDS: [&str; 2] = ["dashboard-fleet.json", "dashboard-node.json"];

/// One query of a panel.
pub struct Query {
    /// The dashboard and the panel.
    pub title: String,
    /// PromQL, with Grafana's variables.
    pub expr: String,
}

impl Query {
    /// The expression with values for Grafana's variables: a node, and an interval for rates.
    pub fn of_node(&self, node: &str) -> String {
        self.expr
            .replace("$__rate_interval", "30s")
            .replace("$node", node)
    }
}

/// The folder of alerts, dashboards and scrape configurations.
pub fn folder() -> PathBuf {
    workspace::root().join("deploy/monitoring")
}

/// The text of one of its files.
///
/// # Errors
/// It cannot be read.
pub fn read(name: &str) -> Result<String> {
    let path = folder().join(name);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The model of one of [`DASHBOARDS`].
///
/// # Errors
/// As [`read`]; it is not JSON.
pub fn dashboard(name: &str) -> Result<Value> {
    serde_json::from_str(&read(name)?).with_context(|| format!("{name} is not JSON"))
}

/// All queries of all panels.
///
/// # Errors
/// As [`dashboard`]; a panel has no title, or a query no expression.
pub fn queries() -> Result<Vec<Query>> {
    let mut queries = Vec::new();
    for name in DASHBOARDS {
        let dashboard = dashboard(name)?;
        for panel in list(&dashboard["panels"]) {
            for target in list(&panel["targets"]) {
                queries.push(Query {
                    title: format!("{}: {}", text(&dashboard["title"])?, text(&panel["title"])?),
                    expr: text(&target["expr"])?.to_owned(),
                });
            }
        }
    }
    Ok(queries)
}

/// The path in Prometheus' API that tells what the variables of the dashboards can be.
///
/// # Errors
/// As [`dashboard`]; a variable is not `label_values(METRIC, LABEL)`.
pub fn paths_of_variables() -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for name in DASHBOARDS {
        for variable in list(&dashboard(name)?["templating"]["list"]) {
            if variable["type"] != "query" {
                continue;
            }
            let asked = text(&variable["query"]["query"])?;
            let (metric, label) =
                label_values(asked).with_context(|| format!("{name}: {asked}"))?;
            paths.push(format!("/api/v1/label/{label}/values?match[]={metric}"));
        }
    }
    Ok(paths)
}

/// The metric and the label in `label_values(METRIC, LABEL)`.
fn label_values(query: &str) -> Option<(&str, &str)> {
    let arguments = query.strip_prefix("label_values(")?.strip_suffix(')')?;
    arguments.split_once(", ")
}

/// The path in Prometheus' API for the values of an expression now.
pub fn path_of(expr: &str) -> String {
    let encoded = expr.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    });
    format!("/api/v1/query?query={}", encoded.collect::<String>())
}

/// The items of an array; none of anything else.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text that is not empty.
///
/// # Errors
/// It is something else.
pub fn text(value: &Value) -> Result<&str> {
    match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text),
        _ => bail!("{value} is no text"),
    }
}
