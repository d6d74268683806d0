//! The examples in `docs`: the chart takes their values, and their commands name what exists.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use culvert_lab::{page, workspace};
use serde_json::Value;
use xtask::manifests::chart::helm;

use crate::objects::{documents, objects};
use crate::placement;

/// The pages that install the chart with values of their own.
const PAGES: [&str; 3] = ["k3s.md", "kubeadm-three-masters.md", "migrate.md"];

/// How the values of a page begin. A page may have several stages of them.
const VALUES: &str = "# culvert.yaml\n";

#[test]
fn the_chart_takes_the_values_of_each_example_and_the_commands_name_what_exists() -> Result<()> {
    for name in PAGES {
        let page = page::read(name)?;
        let commands = commands(&page);
        let blocks = page::blocks(&page, "yaml").into_iter();
        let stages: Vec<_> = blocks.filter_map(|it| it.strip_prefix(VALUES)).collect();
        ensure!(!stages.is_empty(), "{name}: no values");
        for values in stages {
            check(values, &commands).with_context(|| format!("{name}:\n{values}"))?;
        }
    }
    Ok(())
}

#[test]
fn the_chart_takes_the_values_of_the_examples_for_argo_cd_flux_and_prometheus() -> Result<()> {
    let page = page::read("gitops.md")?;
    let mut checked = 0;
    for block in page::blocks(&page, "yaml") {
        let object = &documents(block)?[0];
        let values = match object["kind"].as_str() {
            Some("Application") => &object["spec"]["source"]["helm"]["valuesObject"],
            Some("HelmRelease") => &object["spec"]["values"],
            _ if block.starts_with(VALUES) => object,
            _ => continue,
        };
        let install = "helm install culvert deploy/chart/culvert --values culvert.yaml \
                       --namespace culvert-system";
        check(&values.to_string(), &[install]).with_context(|| block.to_owned())?;
        checked += 1;
    }
    ensure!(checked == 3, "{checked} examples");
    Ok(())
}

fn check(values: &str, commands: &[&str]) -> Result<()> {
    let rendered = rendered(values, commands)?;
    placement::check(&objects(&rendered)?)?;
    let flags = page::read("flags.md")?;
    for value in documents(values)?.iter().flat_map(leaves) {
        ensure!(rendered.contains(value), "{value} is in no object");
        let flag = value.split('=').next().filter(|it| it.starts_with("--"));
        if let Some(flag) = flag {
            ensure!(flags.contains(&format!("| `{flag}` |")), "no flag {flag}");
        }
    }
    for command in commands {
        let label = command.strip_prefix("kubectl label node ");
        let label = label.and_then(|words| words.split_whitespace().last());
        if let Some(label) = label {
            let label = label.trim_end_matches('=');
            ensure!(rendered.contains(label), "{label} is in no object");
        }
        for word in command.split_whitespace() {
            if let Some(name) = word.strip_prefix("daemonset/") {
                let name = format!("\n  name: {name}\n");
                ensure!(rendered.contains(&name), "no {word}");
            }
            let is_there = !word.starts_with("deploy/") || workspace::root().join(word).exists();
            ensure!(is_there, "no {word}");
        }
    }
    Ok(())
}

/// What the page's own command makes of the values.
fn rendered(values: &str, commands: &[&str]) -> Result<String> {
    let install = commands
        .iter()
        .find_map(|it| it.strip_prefix("helm install "));
    let install = install.context("no `helm install`")?;
    let folder = tempfile::tempdir()?;
    symlink(
        workspace::root().join("deploy"),
        folder.path().join("deploy"),
    )?;
    fs::write(folder.path().join("culvert.yaml"), values)?;
    let mut template = helm(folder.path());
    template.arg("template").args(install.split_whitespace());
    workspace::output(template.current_dir(folder.path()))
}

/// The lines that root types.
fn commands(page: &str) -> Vec<&str> {
    let lines = page::blocks(page, "console")
        .into_iter()
        .flat_map(str::lines);
    lines.filter_map(|line| line.strip_prefix("# ")).collect()
}

/// The texts of a value, without the keys.
fn leaves(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(all) => all.iter().flat_map(leaves).collect(),
        Value::Object(all) => all.values().flat_map(leaves).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}
