//! `cargo xtask demo`: a stock Prometheus in a cloud scrapes stock node_exporters on edge nodes
//! that it cannot reach directly.

mod edge;
mod monitoring;
mod table;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Culvert, Options};
use culvert_lab::host::Host;
use culvert_lab::{Lab, LabName, inside, interrupt, progress, wait, workspace};

use crate::setup::Use;
use crate::{build_ebpf, setup};
use edge::EdgePrograms;
use monitoring::Monitoring;

/// Time for several scrapes: there is one per second, and a failed one takes a second.
const SCRAPE_TIME: Duration = Duration::from_secs(15);

/// How the demo ends.
#[derive(clap::Args)]
pub struct Args {
    /// Leave everything up until Ctrl-C, with Prometheus on 127.0.0.1:9090
    #[arg(long)]
    hold: bool,
    /// The port of this machine's loopback that --hold shows Prometheus on
    #[arg(long, default_value_t = 9090)]
    port: u16,
    /// Take the programs that are there, rather than compile them
    #[arg(long)]
    built: bool,
}

/// Runs the demo.
///
/// # Errors
/// A target is not scraped, or another claim of the demo does not hold.
pub fn run(args: &Args) -> Result<()> {
    interrupt::install()?;
    ensure!(
        workspace::is_root(),
        "the demo makes network namespaces and loads eBPF programs: run it as root (`sudo -E env \
         PATH=\"$PATH\" cargo xtask demo`)"
    );
    setup::ensure(&[Use::Ebpf, Use::Labs])?;
    if !args.built {
        build()?;
    }
    let started = Instant::now();
    let lab = Lab::start(LabName::demo())?;
    let shown = show(&lab, args, started);
    progress::say("==> removing everything");
    drop(lab);
    shown
}

fn build() -> Result<()> {
    build_ebpf::run()?;
    let packages = [
        "culvert",
        "culvert-proxy",
        "culvert-agent",
        "culvert-redirector",
    ]
    .map(|package| ["--package", package]);
    progress::run(
        "build the four programs",
        workspace::cargo()
            .arg("build")
            .args(packages.as_flattened()),
    )
    .map(drop)
}

fn show(lab: &Lab, args: &Args, started: Instant) -> Result<()> {
    progress::say(
        "==> hosts cloud, edge-1 (10.0.3.7), edge-2 and edge-3 (both 192.168.1.10), each edge \
         behind its own NAT",
    );
    let mut edges = Host::EDGES
        .map(|host| EdgePrograms::start(lab.site(host)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut monitoring = Monitoring::start(lab.site(Host::Cloud))?;

    progress::say(
        "==> without Culvert: Prometheus cannot reach, and cannot even resolve, any of them",
    );
    let before = wait::until("every target was tried", SCRAPE_TIME, || {
        monitoring.all_tried()
    })?;
    println!("\n{}", table::render(&before));
    ensure!(
        before.iter().all(|target| !target.is_up),
        "a target is up without Culvert: the sites are not apart"
    );

    progress::say(
        "==> starting culvert-proxy and culvert-redirector in the cloud, joining culvert-agent on \
         each edge",
    );
    let mut culvert = Culvert::start(lab, &Host::EDGES, Options::default())?;
    let after = wait::until("every target is up", SCRAPE_TIME, || monitoring.all_up())?;
    println!(
        "\nwith Culvert, as Prometheus' own API tells it:\n\n{}",
        table::render(&after)
    );
    for target in &after {
        ensure!(
            target.node == target.expected,
            "{} was answered by {}, not by {}",
            target.address,
            target.node,
            target.expected
        );
    }
    let ready = started.elapsed();
    edge::show_kubelet(lab)?;
    show_shared_address(lab)?;
    show_kernel(lab)?;
    println!("\nready after {:.1} s", ready.as_secs_f32());
    if args.hold {
        run_until_interrupt(lab, args.port, &mut culvert, &mut monitoring, &mut edges)?;
    }
    Ok(())
}

/// Shows that edge-2 and edge-3, which share an address, are refused by address, with the output of
/// `explain`.
fn show_shared_address(lab: &Lab) -> Result<()> {
    let cloud = lab.site(Host::Cloud);
    let state = cloud.file("redirector").display().to_string();
    for what in ["10.0.3.7:9100", "192.168.1.10:9100", "edge-2"] {
        let text = cloud.output(
            workspace::binary("culvert-redirector"),
            ["explain", what, "--state-dir", &state],
        )?;
        println!(
            "\n$ culvert-redirector explain {what}\n    {}",
            text.trim_end().replace('\n', "\n    ")
        );
    }
    Ok(())
}

fn show_kernel(lab: &Lab) -> Result<()> {
    let cloud = lab.site(Host::Cloud);
    let cgroup = cloud.cgroup().display().to_string();
    println!(
        "\n$ bpftool cgroup show {cgroup}\n{}",
        cloud
            .output("bpftool", ["cgroup", "show", &cgroup])?
            .trim_end()
    );
    let maps = cloud.output("find", ["/sys/fs/bpf/culvert", "-path", "*/maps/*"])?;
    let destinations = maps.lines().find(|path| path.ends_with("cv_destinations"));
    let map = destinations
        .or(maps.lines().next())
        .context("no map is pinned")?;
    let dump = cloud.output("bpftool", ["map", "dump", "pinned", map])?;
    println!(
        "\n$ bpftool map dump pinned {map} | head -24\n{}",
        dump.lines().take(24).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

fn run_until_interrupt(
    lab: &Lab,
    port: u16,
    culvert: &mut Culvert<'_>,
    monitoring: &mut Monitoring,
    edges: &mut [EdgePrograms],
) -> Result<()> {
    inside::forward(
        port,
        lab.site(Host::Cloud).netns().to_path_buf(),
        monitoring::PORT,
    )?;
    println!(
        "
Everything stays up until Ctrl-C. Logs and state are in {folder}. What to try next:
  Prometheus' page              http://127.0.0.1:{port}/classic/targets
  be a process of the cloud     cargo xtask enter cloud bash
  through to an edge by name    cargo xtask enter cloud curl http://edge-2:9100/metrics
  the proxy's view              cargo xtask enter cloud curl http://127.0.0.1:7409/debug/nodes
  kill a program and look       kill -9 {redirector}   (the redirector: Prometheus goes on scraping)",
        folder = lab.name().folder().display(),
        redirector = culvert.redirector.pid(),
    );
    loop {
        if interrupt::check().is_err() {
            return Ok(());
        }
        monitoring.check()?;
        edges.iter_mut().try_for_each(EdgePrograms::check)?;
        wait::pause();
    }
}
