//! The parts list of a program (SBOM) in the format CycloneDX 1.5: each crate that is linked into it,
//! with licence and digest, and which crate needs which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use culvert_lab::workspace;
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::build::Build;
use super::licences;
use super::package::Parts;

/// A crate in that list, as `NAME VERSION`.
type Crate = String;

/// Writes the list of a program into a folder and returns its path.
pub(super) fn write(parts: &Parts, build: &Build, out: &Path) -> Result<PathBuf> {
    let (name, version) = (parts.package.name, build.package_version());
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
    let lock = std::fs::read_to_string(workspace::root().join("Cargo.lock"))?;
    let (checksums, needs) = (checksums(&lock), needs(parts)?);
    let mut program = Value::Null;
    let mut crates = Vec::new();
    let mut listed = BTreeSet::new();
    for line in licences::linked(parts.package, parts.processor)? {
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
            let refs: Vec<_> = needs.into_iter().map(reference).collect();
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
fn checksums(lock: &str) -> BTreeMap<Crate, String> {
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

/// The crates that each crate of the workspace's graph links.
fn needs(parts: &Parts) -> Result<BTreeMap<Crate, BTreeSet<Crate>>> {
    let mut cargo = workspace::cargo();
    cargo
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", parts.processor.target()]);
    let metadata: Value = serde_json::from_str(&workspace::output(&mut cargo)?)?;
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
    Ok(array(&metadata["resolve"]["nodes"])
        .iter()
        .filter_map(node)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::super::package::{PACKAGES, Parts};
    use super::*;
    use crate::processor::Processor;

    fn of_the_agent() -> Value {
        let package = PACKAGES
            .iter()
            .find(|package| package.name == "culvert-agent")
            .expect("a package");
        let parts = Parts {
            package,
            processor: Processor::Aarch64,
            program: b"program".to_vec(),
            unit: String::new(),
            settings: String::new(),
            generated: BTreeMap::new(),
            licences: String::new(),
        };
        list(&parts, &Build::of_work_tree().expect("a work tree")).expect("a list")
    }

    #[test]
    fn a_list_has_what_is_linked_with_digests_and_licences() {
        let list = of_the_agent();
        assert_eq!(list["metadata"]["component"]["name"], "culvert-agent");
        let crates = list["components"].as_array().expect("components");
        let one = |name: &str| crates.iter().find(|one| one["name"] == name);
        let rustls = one("rustls").expect("rustls is linked");
        assert_eq!(
            rustls["hashes"][0]["content"].as_str().map(str::len),
            Some(64)
        );
        assert!(one("proptest").is_none(), "a crate of tests");
        for one in crates {
            assert_ne!(one["licenses"][0]["expression"], "", "{one}");
        }
    }

    #[test]
    fn every_crate_but_the_program_is_needed_by_another() {
        let list = of_the_agent();
        let edges = list["dependencies"].as_array().expect("dependencies");
        let needed: BTreeSet<_> = edges
            .iter()
            .flat_map(|edge| edge["dependsOn"].as_array().expect("an array"))
            .map(Value::as_str)
            .collect();
        for edge in edges {
            let is_program = edge["ref"] == list["metadata"]["component"]["bom-ref"];
            assert!(
                is_program || needed.contains(&edge["ref"].as_str()),
                "{}",
                edge["ref"]
            );
        }
    }
}
