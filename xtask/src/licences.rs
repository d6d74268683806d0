//! The licences of what is linked into the programs. Most of them ask for their text to come along.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::crates::{self, Graph};
use crate::processor::Processor;

const HEAD: &str = "The source of this program is under the licence Apache-2.0. It contains the \
                    crates below, and parts of Rust's standard library (MIT or Apache-2.0) and of \
                    LLVM (Apache-2.0 WITH LLVM-exception).\n";
/// How files with licences are named, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
/// Sources in C are in a folder of the crate, and have licences of their own.
const DEPTH: usize = 4;

/// Each crate of a program with its licence, then each text with the crates that have it.
pub(crate) fn of_crates(package: &str, processor: Processor) -> Result<String> {
    let mut folders = BTreeMap::new();
    let mut linked = BTreeSet::new();
    for graph in crates::graphs(package, processor) {
        folders.extend(sources(&graph)?);
        linked.extend(graph.linked()?);
    }
    let mut text = HEAD.to_owned();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in &linked {
        let (name, licence) = line.split_once('|').context("two fields")?;
        ensure!(!licence.is_empty(), "{name} does not name its licence");
        text += &format!("{name}: {licence}\n");
        let folder = folders
            .get(name)
            .with_context(|| format!("no source of {name}"))?;
        let mut found = BTreeSet::new();
        collect(folder, DEPTH, &mut found)?;
        for one in found {
            texts.entry(one).or_default().push(name.to_owned());
        }
    }
    for (licence, crates) in &texts {
        text += &section(licence, crates);
    }
    Ok(text)
}

/// The text of a licence below the crates that have it.
fn section(licence: &str, crates: &[String]) -> String {
    format!(
        "\n{}\n{}\n\n{}\n",
        "=".repeat(80),
        crates.join(", "),
        licence.trim_end()
    )
}

/// The source of each crate, by `NAME vVERSION`.
fn sources(graph: &Graph) -> Result<BTreeMap<String, PathBuf>> {
    let metadata = graph.metadata()?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    Ok(packages.iter().filter_map(source).collect())
}

fn source(package: &Value) -> Option<(String, PathBuf)> {
    let name = package["name"].as_str()?;
    let version = package["version"].as_str()?;
    let manifest = Path::new(package["manifest_path"].as_str()?);
    Some((format!("{name} v{version}"), manifest.parent()?.to_owned()))
}

fn collect(folder: &Path, depth: usize, found: &mut BTreeSet<String>) -> Result<()> {
    let listed = folder.read_dir();
    for entry in listed.with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        if path.is_dir() && depth > 1 {
            collect(&path, depth - 1, found)?;
        } else if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            found.insert(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licences_of_rust_and_c_sources_come_along() {
        let text = of_crates("culvert-agent", Processor::Aarch64).expect("licences");
        for part in [
            "\nrustls v",
            "Microsoft Corporation, Daan Leijen",
            "OpenSSL",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("proptest v"), "a crate of tests");
    }

    #[test]
    fn those_of_the_kernel_programs_come_along_with_the_redirector() {
        let text = of_crates("culvert-redirector", Processor::X86_64).expect("licences");
        assert!(text.contains("\naya-ebpf v"), "{text}");
    }
}
