//! Many edges, each behind a link of packets of its own, and one proxy. All edges are one host with
//! an address for each, and so is the cloud: an agent that dials the cloud's address of its number
//! comes from the edge's address of that number, whose packets have a link of their own.

use std::fmt::Write;
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_lab::culvert::join_arguments;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait};

use crate::culvert::{self, ADMIN, PairConfig};
use crate::far::{self, DEVICE};
use crate::load::{Figures, Load};
use crate::plan::{EDGES, Pace, Path};
use crate::redirector;
use crate::starter::Starter;

const PROXY: PairConfig = PairConfig {
    name: "fleet",
    port: 7400,
    tunnels: 2,
};
/// Bytes of an answer.
const SCRAPED: usize = 100_000;
/// The longest, fastest and most lossy link; a queue of 200 ms.
const LINK: [&str; 5] = [
    "--round-trip=160",
    "--up=50000000",
    "--down=50000000",
    "--queue=1250000",
    "--loss=0.01",
];
/// Time for all agents, which start on two cores.
const START_TIME: Duration = Duration::from_mins(5);

/// All programs, running. Dropping it ends them.
pub(crate) struct Fleet {
    load: Load,
    /// The proxy's socket for CONNECT.
    connect: String,
    /// The addresses that are steered, in the order of the edges.
    vips: Vec<String>,
    processes: Vec<Process>,
}

impl Fleet {
    /// Starts the programs; `programs` is the folder of the binaries. The seed chooses what links
    /// lose.
    pub(crate) fn start(
        lab: &Lab,
        programs: &FilePath,
        congestion: &str,
        seed: u32,
    ) -> Result<Self> {
        let [cloud, edge] = far::starters(lab, programs);
        let mut processes = vec![start_links(&cloud, &edge, congestion, seed)?];
        let load = far::start_load(&cloud, &edge)?;
        let advertised = format!("{}:{}", cloud_address(1), PROXY.port);
        processes.push(culvert::start_proxy(&cloud, &PROXY, &advertised)?);
        join_all(&cloud)?;
        for number in 1..=EDGES {
            processes.push(start_agent(&cloud, &edge, number)?);
        }
        wait_for_tunnels(&cloud, &mut processes)?;
        let directory = cloud.file(&culvert::socket(PROXY.name, "directory"));
        processes.push(redirector::start(&cloud, &directory)?);
        let mut vips = Vec::new();
        for number in 1..=EDGES {
            let admin = PROXY.port + ADMIN;
            vips.push(redirector::vip(cloud.site, admin, &node(number))?);
        }
        for vip in &vips {
            redirector::wait_steered(cloud.site, vip, far::BACKEND)?;
        }
        Ok(Self {
            load,
            connect: cloud.file(&culvert::socket(PROXY.name, "connect")),
            vips,
            processes,
        })
    }

    /// Fails if one of the programs has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
    }

    /// Has an answer from every edge at once, several times.
    pub(crate) fn scrape_all(&mut self, path: Path, pace: Pace) -> Result<Figures> {
        let count = match pace {
            Pace::Quick => 1,
            Pace::Full => 4,
        };
        let reuse = if path == Path::DirectNew {
            "new"
        } else {
            "kept"
        };
        let mut line = format!("scrape {SCRAPED} {count} 2 {reuse}");
        for number in 1..=EDGES {
            write!(line, " {}", self.endpoint(path, number)?).expect("a String takes it");
        }
        self.load.run(&line)
    }

    fn endpoint(&self, path: Path, number: u8) -> Result<String> {
        let port = far::BACKEND;
        Ok(match path {
            Path::Direct | Path::DirectNew => format!("tcp:{}:{port}", edge_address(number)),
            Path::Connect => format!("connect:{}:{}:{port}", self.connect, node(number)),
            Path::InterceptEbpf => {
                let vip = self.vips.get(usize::from(number) - 1);
                format!("tcp:{}:{port}", vip.context("no such edge")?)
            }
            Path::PlainRelay
            | Path::TlsRelay
            | Path::SimpleTlsRelay
            | Path::Konnectivity
            | Path::Frp
            | Path::FrpNoMux
            | Path::Rathole
            | Path::ConnectAgainst
            | Path::ConnectByPeer
            | Path::ConnectTls
            | Path::ConnectDirect
            | Path::InterceptNft
            | Path::Redirector => bail!("no {} over many links", path.name()),
        })
    }
}

fn node(number: u8) -> String {
    format!("edge-{number}")
}

fn cloud_address(number: u8) -> String {
    format!("192.0.2.{number}")
}

fn edge_address(number: u8) -> String {
    format!("100.65.0.{number}")
}

fn start_links(
    cloud: &Starter<'_>,
    edge: &Starter<'_>,
    congestion: &str,
    seed: u32,
) -> Result<Process> {
    let mut args: Vec<String> = LINK.map(str::to_owned).into();
    args.extend([format!("--seed={seed}"), format!("--links={EDGES}")]);
    let process = far::start_link(cloud, edge, &args)?;
    for starter in [cloud, edge] {
        far::set_buffers(starter)?;
    }
    set_up_device(cloud, congestion, cloud_address, edge_address)?;
    set_up_device(edge, congestion, edge_address, cloud_address)?;
    Ok(process)
}

/// Gives the device of one end an address for each link, from which it reaches the other end's of
/// the same number.
fn set_up_device(
    starter: &Starter<'_>,
    congestion: &str,
    own: fn(u8) -> String,
    other: fn(u8) -> String,
) -> Result<()> {
    let mut commands = format!("link set {DEVICE} txqueuelen {} up\n", far::DEVICE_QUEUE);
    for number in 1..=EDGES {
        let own = own(number);
        let other = other(number);
        writeln!(commands, "addr add {own} dev {DEVICE}").expect("a String takes it");
        writeln!(
            commands,
            "route add {other} dev {DEVICE} src {own} congctl {congestion}"
        )
        .expect("a String takes it");
    }
    let file = starter.file("addresses");
    std::fs::write(&file, commands).with_context(|| format!("write {file}"))?;
    far::ip(starter, &format!("-batch {file}"))
}

/// Gets a certificate for every agent, without the links.
fn join_all(cloud: &Starter<'_>) -> Result<()> {
    let nodes: String = (1..=EDGES).map(|number| node(number) + "\n").collect();
    let file = cloud.file("nodes");
    std::fs::write(&file, nodes).with_context(|| format!("write {file}"))?;
    let create = ["token", "create", "--nodes", &file];
    let printed = cloud.ask(&culvert::socket(PROXY.name, "control"), &create)?;
    for line in printed.lines() {
        let (node, join) = line
            .split_once('\t')
            .with_context(|| format!("no join command in {line:?}"))?;
        let mut join = join_arguments(join)?;
        join.extend(["--state-dir".to_owned(), agent_state(cloud, node)]);
        cloud.output("culvert-agent", &join)?;
    }
    Ok(())
}

fn agent_state(cloud: &Starter<'_>, node: &str) -> String {
    cloud.file(&format!("{node}-agent"))
}

fn start_agent(cloud: &Starter<'_>, edge: &Starter<'_>, number: u8) -> Result<Process> {
    let state = agent_state(cloud, &node(number));
    let mut command = edge.command("culvert-agent");
    let run = format!(
        "--log warn --state-dir {state} --proxy {}:{} --tunnels {} --port {} --admin-listen \
         127.0.0.1:0 --admin-socket {state}.sock",
        cloud_address(number),
        PROXY.port,
        PROXY.tunnels,
        far::BACKEND
    );
    let name = format!("{}-agent", node(number));
    edge.site.start_process(&name, command.args(run.split(' ')))
}

/// Waits until every agent has its tunnels, all over its own link.
fn wait_for_tunnels(cloud: &Starter<'_>, processes: &mut [Process]) -> Result<()> {
    let all = usize::from(EDGES) * usize::from(PROXY.tunnels);
    wait::until("all agents have their tunnels", START_TIME, || {
        processes.iter_mut().try_for_each(Process::check)?;
        let listed = cloud.site.json(PROXY.port + ADMIN, "/debug/tunnels")?;
        let tunnels = listed.as_array().context("no list")?;
        ensure!(tunnels.len() == all, "{} of {all}", tunnels.len());
        for number in 1..=EDGES {
            let from = format!("{}:", edge_address(number));
            for tunnel in tunnels
                .iter()
                .filter(|tunnel| tunnel["node"] == node(number))
            {
                let peer = tunnel["agent"].as_str().context("no address")?;
                ensure!(peer.starts_with(&from), "edge {number} comes from {peer}");
            }
        }
        Ok(())
    })
}
