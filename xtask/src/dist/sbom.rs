//! The parts list of a program (SBOM) in the format CycloneDX 1.5: each crate that is linked into it
//! and into the kernel programs that it embeds, with licence and digest, Rust's standard library, and
//! which of them needs which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::package::Parts;
use crate::build::Build;
use crate::crates;
use crate::processor::Processor;
use crate::processor::toolchain::Toolchain;

/// A crate in that list, as `NAME VERSION`.
type Crate = String;

/// Writes the list of a program into a folder and returns its path.
pub(super) fn write(parts: &Parts, build: &Build, out: &Path) -> Result<PathBuf> {
    let name = parts.package.name;
    let version = build.package_version();
    let list = list(parts, build)?;
    let path = out.join(format!(
        "{name}_{version}_{}.cdx.json",
        parts.processor.debian()
    ));
    std::fs::write(&path, serde_json::to_string_pretty(&list)? + "\n")
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// What cargo has of the crates of a program and of what it embeds.
#[derive(Default)]
struct Crates {
    /// `NAME vVERSION|LICENCE` of each that is linked.
    linked: BTreeSet<String>,
    checksums: BTreeMap<Crate, String>,
    needs: BTreeMap<Crate, BTreeSet<Crate>>,
}

impl Crates {
    fn read(parts: &Parts) -> Result<Self> {
        let mut crates = Self::default();
        for graph in crates::graphs(parts.package.name, parts.processor) {
            crates.checksums.extend(checksums_of(&graph.lock()?));
            crates.needs.extend(needs_of(&graph.metadata()?));
            crates.linked.extend(graph.linked()?);
        }
        Ok(crates)
    }
}

fn list(parts: &Parts, build: &Build) -> Result<Value> {
    let Crates {
        linked,
        checksums,
        needs,
    } = Crates::read(parts)?;
    let standard_library = standard_library(parts.processor)?;
    let mut of_program = vec![standard_library["bom-ref"].clone()];
    let mut program = Value::Null;
    let mut crates = vec![standard_library];
    let mut listed = BTreeSet::new();
    for line in linked {
        let (one, licence) = line.split_once('|').context("two fields")?;
        let one: Crate = one.replacen(" v", " ", 1);
        let mut component = component(&one, licence)?;
        if let Some(checksum) = checksums.get(&one) {
            component["hashes"] = digest(checksum);
        }
        if component["name"] == crates::KERNEL {
            // No crate needs the kernel programs.
            of_program.push(component["bom-ref"].clone());
        }
        if component["name"] == parts.package.name {
            component["type"] = "application".into();
            component["version"] = build.package_version().into();
            component["hashes"] = digest(&HEXLOWER.encode(&Sha256::digest(&parts.program)));
            program = component;
        } else {
            crates.push(component);
        }
        listed.insert(one);
    }
    let mut dependencies = Vec::new();
    for one in &listed {
        let mut refs = needed_refs(needs.get(one), &listed);
        if program["bom-ref"] == reference(one) {
            refs.append(&mut of_program);
        }
        dependencies.push(json!({"ref": reference(one), "dependsOn": refs}));
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": build.timestamp(),
            "tools": {"components": [{"type": "application", "name": "cargo xtask dist"}]},
            "component": program,
        },
        "components": crates,
        "dependencies": dependencies,
    }))
}

/// The references of those crates that one needs and that are listed.
fn needed_refs(needs: Option<&BTreeSet<Crate>>, listed: &BTreeSet<Crate>) -> Vec<Value> {
    let mut refs = Vec::new();
    for need in needs.into_iter().flatten() {
        if listed.contains(need) {
            refs.push(reference(need).into());
        }
    }
    refs
}

/// The part that the compiler adds.
fn standard_library(processor: Processor) -> Result<Value> {
    let version = Toolchain::of(processor)?.version()?;
    let reference = format!("pkg:generic/rust-std@{version}");
    Ok(json!({
        "type": "library",
        "bom-ref": reference,
        "name": "rust-std",
        "version": version,
        "purl": reference,
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }))
}

fn component(one: &Crate, licence: &str) -> Result<Value> {
    let (name, version) = one.split_once(' ').context("a name and a version")?;
    Ok(json!({
        "type": "library",
        "bom-ref": reference(one),
        "name": name,
        "version": version,
        "purl": reference(one),
        // Some crates have the form of before SPDX.
        "licenses": [{"expression": licence.replace('/', " OR ")}],
    }))
}

/// The package URL of a crate, which also names it within the list.
fn reference(one: &Crate) -> String {
    format!("pkg:cargo/{}", one.replace(' ', "@").replace('+', "%2B"))
}

fn digest(sha256: &str) -> Value {
    json!([{"alg": "SHA-256", "content": sha256}])
}

/// The digest of each crate's archive, from `Cargo.lock`.
fn checksums_of(lock: &str) -> BTreeMap<Crate, String> {
    let mut checksums = BTreeMap::new();
    for block in lock.split("[[package]]") {
        if let Some(name) = field(block, "name")
            && let Some(version) = field(block, "version")
            && let Some(checksum) = field(block, "checksum")
        {
            checksums.insert(format!("{name} {version}"), checksum.to_owned());
        }
    }
    checksums
}

/// The text in the line `NAME = "TEXT"`.
fn field<'a>(block: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("{name} = \"");
    let text = block.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(text.trim_end_matches('"'))
}

/// The crates that each crate links, from cargo's metadata.
fn needs_of(metadata: &Value) -> BTreeMap<Crate, BTreeSet<Crate>> {
    let mut names = BTreeMap::new();
    for package in elements(&metadata["packages"]) {
        if let Some(id) = package["id"].as_str()
            && let Some(name) = package["name"].as_str()
            && let Some(version) = package["version"].as_str()
        {
            names.insert(id, format!("{name} {version}"));
        }
    }
    let mut needs = BTreeMap::new();
    for node in elements(&metadata["resolve"]["nodes"]) {
        let Some(one) = name_of(&node["id"], &names) else {
            continue;
        };
        let mut needed = BTreeSet::new();
        for edge in elements(&node["deps"]) {
            if is_linked(edge) {
                needed.extend(name_of(&edge["pkg"], &names));
            }
        }
        needs.insert(one, needed);
    }
    needs
}

fn name_of(id: &Value, names: &BTreeMap<&str, Crate>) -> Option<Crate> {
    names.get(id.as_str()?).cloned()
}

fn is_linked(edge: &Value) -> bool {
    elements(&edge["dep_kinds"])
        .iter()
        .any(|kind| kind["kind"].is_null())
}

/// The elements of an array. Anything else has none.
fn elements(value: &Value) -> &[Value] {
    match value.as_array() {
        Some(elements) => elements,
        None => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::super::package::{PACKAGES, Parts};
    use super::*;

    fn of(name: &str) -> Value {
        let package = PACKAGES.iter().find(|package| package.name == name);
        let parts = Parts {
            package: package.expect("a package"),
            processor: Processor::here().expect("a known processor"),
            program: b"program".to_vec(),
            service: None,
            network: BTreeMap::new(),
            generated: BTreeMap::new(),
            licences: String::new(),
        };
        list(&parts, &Build::of_work_tree().expect("a work tree")).expect("a list")
    }

    #[test]
    fn a_list_has_what_is_linked_with_digests_and_licences() {
        let list = of("culvert-agent");
        assert_eq!(list["metadata"]["component"]["name"], "culvert-agent");
        let crates = list["components"].as_array().expect("components");
        let one = |name: &str| crates.iter().find(|one| one["name"] == name);
        let rustls = one("rustls").expect("rustls is linked");
        assert_eq!(
            rustls["hashes"][0]["content"].as_str().map(str::len),
            Some(64)
        );
        assert!(one("rust-std").is_some() && one("aya-ebpf").is_none());
        assert!(one("proptest").is_none(), "a crate of tests");
        for one in crates {
            assert_ne!(one["licenses"][0]["expression"], "", "{one}");
        }
    }

    #[test]
    fn the_redirectors_list_has_its_kernel_programs() {
        let list = of("culvert-redirector");
        let crates = list["components"].as_array().expect("components");
        let aya = crates.iter().find(|one| one["name"] == "aya-ebpf");
        let digest = &aya.expect("it is linked")["hashes"][0]["content"];
        assert_eq!(digest.as_str().map(str::len), Some(64));
    }

    #[test]
    fn every_component_but_the_program_is_needed_by_another() {
        for program in ["culvert-agent", "culvert-redirector"] {
            let list = of(program);
            let edges = list["dependencies"].as_array().expect("dependencies");
            let needed: Vec<_> = edges
                .iter()
                .flat_map(|edge| edge["dependsOn"].as_array().expect("an array"))
                .collect();
            for one in list["components"].as_array().expect("components") {
                assert!(needed.contains(&&one["bom-ref"]), "{one}");
            }
        }
    }
}
