//! `deploy/monitoring` by the types of those that read it: Grafana and the Prometheus Operator.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use culvert_lab::go_program::GoProgram;
use culvert_lab::monitoring::DASHBOARDS;
use culvert_lab::{monitoring, workspace};
use xtask::manifests::PROMETHEUS_RULE;

const POD_MONITOR: &str = "podmonitor.yaml";

fn check(file: &Path) -> Result<()> {
    let program = GoProgram::MonitoringCheck
        .find()
        .context("no check: run `cargo xtask setup`")?;
    workspace::output(Command::new(program).arg(file)).map(drop)
}

#[test]
fn the_dashboards_are_valid_by_the_schema_of_grafana() -> Result<()> {
    for name in DASHBOARDS {
        check(&monitoring::folder().join(name))?;
    }
    Ok(())
}

#[test]
fn the_schema_refuses_a_field_a_value_a_size_and_a_panel_that_grafana_lacks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let valid = fs::read_to_string(monitoring::folder().join(DASHBOARDS[0]))?;
    for (right, wrong, said) in [
        ("\"legendFormat\"", "\"legend\"", "unexpected field"),
        ("\"wideLayout\": true,", "", "required field"),
        ("\"graphMode\": \"none\"", "\"graphMode\": \"dots\"", "dots"),
        ("\"w\": 4", "\"w\": 44", "must be <= 24"),
        ("\"w\": 4", "\"w\": \"4\"", "string"),
        ("\"timeseries\"", "\"timeline\"", "no panel \"timeline\""),
    ] {
        ensure!(valid.contains(right), "no {right} in {}", DASHBOARDS[0]);
        let broken = folder.path().join("dashboard.json");
        fs::write(&broken, valid.replace(right, wrong))?;
        let refused = check(&broken).err();
        let refused = refused.with_context(|| format!("{wrong:?} in place of {right} is valid"))?;
        ensure!(format!("{refused:#}").contains(said), "{refused:#}");
    }
    Ok(())
}

#[test]
fn the_prometheus_operator_knows_each_field_of_its_objects() -> Result<()> {
    for name in [POD_MONITOR, PROMETHEUS_RULE] {
        check(&monitoring::folder().join(name))?;
    }
    let folder = tempfile::tempdir()?;
    let valid = fs::read_to_string(monitoring::folder().join(POD_MONITOR))?;
    let broken = folder.path().join(POD_MONITOR);
    fs::write(&broken, valid.replace("sourceLabels", "source_labels"))?;
    let refused = check(&broken).err().context("it knows any field")?;
    let said = "unknown field \"source_labels\"";
    ensure!(format!("{refused:#}").contains(said), "{refused:#}");
    Ok(())
}
