//! The parts list of a program (SBOM) in the format CycloneDX 1.5: each crate that is linked into it
//! and into the kernel programs that it embeds, with licence and digest, Rust's standard library, and
//! which of them needs which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::build::Build;
use super::crates;
use super::package::Parts;
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

fn list(parts: &Parts, build: &Build) -> Result<Value> {
    let mut checksums = BTreeMap::new();
    let mut needs = BTreeMap::new();
    let mut linked = BTreeSet::new();
    for graph in crates::graphs(parts.package.name, parts.processor) {
        checksums.extend(checksums_of(&graph.lock()?));
        needs.extend(needs_of(&graph.metadata()?));
        linked.extend(graph.linked()?);
    }
    let standard_library = standard_library(parts.processor)?;
    let mut program = Value::Null;
    let mut crates = vec![standard_library.clone()];
    let mut listed = BTreeSet::new();
    for line in linked {
        let (one, licence) = line.split_once('|').context("two fields")?;
        let one: Crate = one.replacen(" v", " ", 1);
        let mut component = component(&one, licence)?;
        if let Some(checksum) = checksums.get(&one) {
            component["hashes"] = digest(checksum);
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
    let dependencies: Vec<_> = listed
        .iter()
        .map(|one| {
            let needs = needs.get(one).into_iter().flatten();
            let needs: Vec<_> = needs.filter(|need| listed.contains(*need)).collect();
            let mut refs: Vec<_> = needs
                .into_iter()
                .map(|need| Value::from(reference(need)))
                .collect();
            if program["bom-ref"] == reference(one) {
                refs.push(standard_library["bom-ref"].clone());
                refs.extend(embedded(&crates));
            }
            json!({"ref": reference(one), "dependsOn": refs})
        })
        .collect();
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

/// The kernel programs among the components: no crate needs them.
fn embedded(components: &[Value]) -> impl Iterator<Item = Value> {
    let is_kernel = |component: &&Value| component["name"] == crates::KERNEL;
    let found = components.iter().filter(is_kernel);
    found.map(|component| component["bom-ref"].clone())
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
    let block = |block: &str| {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            let line = block.lines().find_map(|line| line.strip_prefix(&start))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        let one = format!("{} {}", field("name")?, field("version")?);
        Some((one, field("checksum")?))
    };
    lock.split("[[package]]").filter_map(block).collect()
}

/// The crates that each crate links, from cargo's metadata.
fn needs_of(metadata: &Value) -> BTreeMap<Crate, BTreeSet<Crate>> {
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let names: BTreeMap<_, _> = array(&metadata["packages"])
        .iter()
        .filter_map(|package| {
            let text = |field: &str| package[field].as_str();
            let name = format!("{} {}", text("name")?, text("version")?);
            Some((text("id")?.to_owned(), name))
        })
        .collect();
    let name = |id: &Value| names.get(id.as_str()?).cloned();
    let is_linked = |edge: &Value| {
        array(&edge["dep_kinds"])
            .iter()
            .any(|kind| kind["kind"].is_null())
    };
    let node = |node: &Value| {
        let edges = array(&node["deps"]);
        let edges = edges.iter().filter(|edge| is_linked(edge));
        Some((
            name(&node["id"])?,
            edges.filter_map(|edge| name(&edge["pkg"])).collect(),
        ))
    };
    array(&metadata["resolve"]["nodes"])
        .iter()
        .filter_map(node)
        .collect()
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
            unit: String::new(),
            settings: String::new(),
            sysctl: String::new(),
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
