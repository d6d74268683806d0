//! Counts how the code of the workspace reads, and compares it with limits: `cargo xtask structure`.
//!
//! Only production code counts: what is compiled for tests alone is left out. Source is read by
//! `syn`; a token is what `proc-macro2` calls one, with signs such as `->` as one.
#![forbid(unsafe_code)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enums of syn are non-exhaustive"
)]

mod exceptions;
mod idioms;
mod imports;
mod rules;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use culvert_lab::workspace;
use serde_json::Value;

use exceptions::Exceptions;
use rules::{Finding, Rule};
use source::Crate;

/// Counts, prints what is above a limit, and says by its status whether there is anything. With
/// `--record` as `argument`, it writes the exceptions instead.
///
/// # Errors
/// The source or the file of exceptions cannot be read, or the argument is another one.
pub fn run(argument: Option<&str>) -> Result<ExitCode> {
    let top = workspace::root();
    let mut crates = Vec::new();
    let mut findings = Vec::new();
    for (folder, roots) in packages(&top)? {
        let sources = Crate::read(&top, &folder, &roots)?;
        findings.extend(rules::count(&sources));
        crates.push(sources);
    }
    let exceptions = Exceptions::read(&top)?;
    match argument {
        None => {}
        Some("--record") => {
            exceptions.write(&findings)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(other) => bail!("unknown argument {other}"),
    }
    print_table(&crates, &findings);
    if passes(&findings, &exceptions) {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

/// The folders of all packages of the workspace, with the first files of their libraries and programs.
fn packages(top: &Path) -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut command = workspace::cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&workspace::output(&mut command)?)?;
    let mut packages: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let manifest = Path::new(package["manifest_path"].as_str().context("no manifest")?);
        let folder = manifest.parent().context("no folder")?.strip_prefix(top)?;
        let roots = packages.entry(folder.display().to_string()).or_default();
        for target in package["targets"].as_array().context("no targets")? {
            let kind = &target["kind"][0];
            if kind == "lib" || kind == "bin" {
                roots.push(PathBuf::from(
                    target["src_path"].as_str().context("no source")?,
                ));
            }
        }
    }
    Ok(packages)
}

/// Prints the size of each crate and what the rules about crates count.
fn print_table(crates: &[Crate], findings: &[Finding]) {
    println!("crate                 lines  functions  p95  combinators  closures");
    for sources in crates {
        let mut lines = 0;
        for file in sources.files() {
            lines += file.lines;
        }
        let mut functions = 0;
        let mut amounts: BTreeMap<Rule, f64> = BTreeMap::new();
        let files = format!("{}/src/", sources.folder);
        for finding in findings {
            if finding.rule == Rule::Function && finding.subject.starts_with(&files) {
                functions += 1;
            } else if finding.subject == sources.folder {
                amounts.insert(finding.rule, finding.amount);
            }
        }
        println!(
            "{:<20} {lines:>6} {functions:>10} {:>4} {:>12} {:>9}",
            sources.folder,
            amounts.get(&Rule::Functions).unwrap_or(&0.0),
            amounts.get(&Rule::Combinators).unwrap_or(&0.0),
            amounts.get(&Rule::Closures).unwrap_or(&0.0),
        );
    }
}

/// Whether nothing is above its limit, and no exception is left that nothing needs. Prints what is.
fn passes(findings: &[Finding], exceptions: &Exceptions) -> bool {
    let mut holds = true;
    for rule in Rule::ALL {
        for finding in findings {
            let limit = exceptions.limit(rule, &finding.subject);
            if finding.rule != rule || finding.amount <= limit {
                continue;
            }
            holds = false;
            println!(
                "\n{rule}: {} has {}, limit {limit}: {}",
                finding.subject,
                finding.amount,
                rule.reason()
            );
            for place in &finding.places {
                println!("  {place}");
            }
        }
    }
    let unneeded = exceptions.unneeded(findings);
    if !unneeded.is_empty() {
        holds = false;
        println!(
            "\nexceptions that nothing needs any more; `cargo xtask structure --record` removes them:"
        );
        for exception in unneeded {
            println!("  {exception}");
        }
    }
    holds
}
