//! The crates that are linked into a package's program, and into the kernel programs that it
//! embeds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use culvert_lab::workspace;
use serde_json::Value;

use crate::build_ebpf;
use crate::processor::Processor;

/// The package of the kernel programs, which is no member of the workspace.
pub(crate) const KERNEL: &str = "culvert-redirector-ebpf";
/// The package of the program that embeds them.
const EMBEDS_KERNEL: &str = "culvert-redirector";

/// Something that is compiled for one target, with the crates that it needs.
pub(crate) struct Graph {
    /// The folder of its `Cargo.lock`.
    folder: PathBuf,
    package: String,
    target: String,
}

/// The graph of a package's program first, then of what it embeds.
pub(crate) fn graphs(package: &str, processor: Processor) -> Vec<Graph> {
    let mut graphs = vec![Graph {
        folder: workspace::root(),
        package: package.to_owned(),
        target: processor.target().to_owned(),
    }];
    if package == EMBEDS_KERNEL {
        graphs.push(Graph {
            folder: workspace::root().join("redirector-ebpf"),
            package: KERNEL.to_owned(),
            target: build_ebpf::TARGET.to_owned(),
        });
    }
    graphs
}

impl Graph {
    /// `NAME vVERSION|LICENCE` of each crate that is linked, the program's own too.
    pub(crate) fn linked(&self) -> Result<BTreeSet<String>> {
        let mut cargo = self.cargo();
        cargo
            .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
            .args(["--target", &self.target])
            .args(["--no-dedupe", "--format", "{p}|{l}"])
            .args(["--package", &self.package]);
        let listed = workspace::output(&mut cargo)?;
        let mut linked = BTreeSet::new();
        for line in listed.lines() {
            let Some((name, licence)) = line.split_once('|') else {
                continue;
            };
            // Without the folder, or that it is a proc macro.
            let name: Vec<_> = name.split(' ').take(2).collect();
            linked.insert(format!("{}|{licence}", name.join(" ")));
        }
        Ok(linked)
    }

    /// What cargo knows of its packages.
    pub(crate) fn metadata(&self) -> Result<Value> {
        let mut cargo = self.cargo();
        cargo
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(["--filter-platform", &self.target]);
        Ok(serde_json::from_str(&workspace::output(&mut cargo)?)?)
    }

    /// The text of its `Cargo.lock`.
    pub(crate) fn lock(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.folder.join("Cargo.lock"))?)
    }

    fn cargo(&self) -> Command {
        let mut cargo = workspace::cargo();
        cargo.current_dir(&self.folder);
        cargo
    }
}
