//! `cargo xtask <task>`: see `--help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use culvert_lab::probe;
use xtask::{
    bench, book, build_ebpf, cluster, demo, deps, dist, e2e, enter, flags, fuzz, image, kube,
    manifests, pictures, setup, structure, test,
};

/// All automation of Culvert. The two commands a newcomer needs are `demo` and `test`.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building and testing need; says what to install where it may not do it itself
    Setup(setup::Args),
    /// Compile the kernel programs into target/ebpf/culvert-redirector.bpf.o
    BuildEbpf,
    /// Compile Kubernetes and etcd from their Go modules into target/tools/kube/VERSION
    Kube(kube::Args),
    /// Start, enter and stop a real Kubernetes cluster in network namespaces of this machine (root)
    Cluster(culvert_cluster::Args),
    /// Run all tests; those that need root are skipped, and said to be, without it
    Test(test::Args),
    /// Show a stock Prometheus scraping edge nodes that it cannot reach (root)
    Demo(demo::Args),
    /// Show `kubectl logs`, `exec` and all else on a real Kubernetes cluster, before and after
    /// Culvert (root)
    E2e(e2e::Args),
    /// Measure Culvert beside direct TCP and relays without a tunnel, on this machine (root)
    Bench(culvert_bench::Args),
    /// Measure ten thousand agents on three proxies, on this machine: restart, memory, processor
    /// (root)
    Scale(culvert_scale::Args),
    /// Check licences, sources and duplicates of dependencies (deny.toml), and that all are used
    Deps(deps::Args),
    /// Count how the code reads, and compare it with limits
    Structure(structure::Args),
    /// Make up inputs for the parsers of what others write, for a bounded time
    Fuzz(fuzz::Args),
    /// Make container images of the programs, without a container engine
    Image(image::Args),
    /// Make what users install: packages for dpkg and rpm, an archive, checksums, signed on request
    Dist(dist::Args),
    /// Render the manifests of deploy/overlays into deploy/rendered
    Manifests,
    /// Write docs/flags.md from the help of the programs
    Flags,
    /// Make the pictures of the documents from figures and a recording
    Pictures(pictures::Args),
    /// Make web pages with search of the documents, in target/book
    Book,
    /// Run a command as a process of one of the held demo's hosts: cloud, edge-1, edge-2 or edge-3
    /// (root)
    Enter(enter::Args),
    /// Clients and servers that the demo and the tests run inside the hosts
    #[command(hide = true)]
    Probe(probe::Args),
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup(args) => setup::run(&args)?,
        Task::BuildEbpf => build_ebpf::run()?,
        Task::Cluster(args) => return cluster::run(args),
        Task::Kube(args) => kube::run(&args)?,
        Task::Test(args) => test::run(&args)?,
        Task::Demo(args) => demo::run(&args)?,
        Task::E2e(args) => e2e::run(&args)?,
        Task::Bench(args) => bench::run(&args)?,
        Task::Scale(args) => culvert_scale::run(&args)?,
        Task::Deps(args) => deps::run(&args)?,
        Task::Structure(args) => structure::run(&args)?,
        Task::Fuzz(args) => fuzz::run(&args)?,
        Task::Image(args) => image::run(&args)?,
        Task::Dist(args) => dist::run(&args)?,
        Task::Manifests => manifests::run()?,
        Task::Flags => flags::run()?,
        Task::Pictures(args) => pictures::run(&args)?,
        Task::Book => book::run()?,
        Task::Enter(args) => return enter::run(&args),
        Task::Probe(args) => probe::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_of_every_task_fits_together() {
        Args::command().debug_assert();
    }
}
