//! The programs on both ends of one link: the clients, the proxy and the near half of the relay in
//! the cloud; the backend, the agent and the far half on the edge. Each link has programs of its own,
//! started for it, so that no congestion window remembers another link.

mod weak;

use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use culvert_lab::host::Host;
use culvert_lab::process::Process;
use culvert_lab::{Lab, wait, workspace};

use crate::culvert::{Culvert, PairConfig};
use crate::load::{Figures, Load};
use crate::others::Others;
use crate::plan::far::{DOWN, Link};
use crate::plan::{Job, Pace, Path, Work};
use crate::redirector;
use crate::starter::Starter;
use crate::world::relays::{self, Relays};
use weak::Weak;

/// The name of the link's device on both hosts.
pub(crate) const DEVICE: &str = "packets";
const CLOUD: &str = "192.0.2.1";
const EDGE: &str = "192.0.2.2";
pub(crate) const BACKEND: u16 = 9100;
/// The ports of the near and the far half of each relay.
const PLAIN_RELAY: [u16; 2] = [8110, 8111];
const TLS_RELAY: [u16; 2] = [8120, 8121];
/// Time for programs that start side by side on two cores, over a slow link.
const START_TIME: Duration = Duration::from_secs(60);
/// No tunnel pings more often.
const QUIET: Duration = Duration::from_secs(4);
/// Several pings of each tunnel.
const IDLE: Duration = Duration::from_secs(200);
/// What the hosts of users have, whatever this machine is set to.
const BUFFERS: [&str; 2] = [
    "net.ipv4.tcp_rmem=4096 131072 6291456",
    "net.ipv4.tcp_wmem=4096 16384 4194304",
];
/// Packets that wait in the device while the process of the link waits for a processor: more than
/// any queue of a link has, so that only the link drops them.
pub(crate) const DEVICE_QUEUE: &str = "10000";

/// What differs between worlds.
pub(crate) struct Settings<'a> {
    pub(crate) link: Link,
    /// The name of the TCP congestion control over the link.
    pub(crate) congestion: &'a str,
    /// The agent's tunnels.
    pub(crate) tunnels: u8,
    /// Other programs of Culvert, for a path of their own.
    pub(crate) against: Option<&'a FilePath>,
    /// The seed for the choice of the packets that the link loses.
    pub(crate) seed: u32,
}

/// All programs, running. Dropping it ends them.
pub(crate) struct World {
    link: Link,
    /// The network namespace of the cloud.
    cloud: PathBuf,
    load: Load,
    culvert: Culvert,
    against: Option<Culvert>,
    others: Others,
    /// The address of the node, which is steered.
    vip: String,
    processes: Vec<Process>,
    /// After the processes: it is removed once they have ended.
    _weak: Option<Weak>,
}

impl World {
    /// Starts the programs; `programs` is the folder of the binaries.
    pub(crate) fn start(lab: &Lab, programs: &FilePath, settings: &Settings<'_>) -> Result<Self> {
        let [cloud, edge] = starters(lab, programs);
        let link = start_link(&cloud, &edge, &link_arguments(settings))?;
        set_up_device(&cloud, CLOUD, EDGE, settings.congestion)?;
        set_up_device(&edge, EDGE, CLOUD, settings.congestion)?;
        let mut processes = vec![link];
        let load = start_load(&cloud, &edge)?;
        let certificate = Relays::certificate(&edge);
        processes.extend(start_relay(&cloud, &edge, "plain", PLAIN_RELAY, None)?);
        processes.extend(start_relay(
            &cloud,
            &edge,
            "tls",
            TLS_RELAY,
            Some(&certificate),
        )?);
        let config = PairConfig {
            name: "far",
            port: 7400,
            tunnels: settings.tunnels,
        };
        let culvert = Culvert::start(&cloud, &edge, &config, CLOUD, &[BACKEND])?;
        let against = start_against(lab, settings)?;
        let mut weak = None;
        if let Some(percent) = settings.link.agent_percent() {
            let agents = [Some(&culvert), against.as_ref()].into_iter().flatten();
            let pids = agents.map(|it| it.agent().pid());
            weak = Some(Weak::make(lab.name(), pids, percent)?);
        }
        processes.push(redirector::start(
            &cloud,
            &culvert.directory_socket(cloud.site),
        )?);
        let vip = culvert.vip(cloud.site)?;
        redirector::wait_steered(cloud.site, &vip, BACKEND)?;
        Ok(Self {
            link: settings.link,
            cloud: cloud.site.netns().into(),
            load,
            culvert,
            against,
            others: Others::start(cloud.site, edge.site, CLOUD, BACKEND)?,
            vip,
            _weak: weak,
            processes,
        })
    }

    /// Fails if one of the programs has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.culvert.check()?;
        if let Some(against) = &mut self.against {
            against.check()?;
        }
        self.others.check()?;
        self.processes.iter_mut().try_for_each(Process::check)
    }

    /// Runs the job on that path.
    pub(crate) fn run(&mut self, job: &Job, path: Path, pace: Pace) -> Result<Figures> {
        let Work::Far(work) = job.work else {
            bail!("it needs the near world")
        };
        let endpoint = self.endpoint(path)?;
        let direct = self.endpoint(Path::Direct)?;
        let Some(line) = work.line(path, &endpoint, &direct, pace) else {
            return self.idle(pace);
        };
        Ok(work.counted(self.load.run(&line)?, self.link))
    }

    /// Where the load dials to use a path.
    fn endpoint(&self, path: Path) -> Result<String> {
        Ok(match path {
            Path::Direct | Path::DirectNew => format!("tcp:{EDGE}:{BACKEND}"),
            Path::PlainRelay => format!("tcp:127.0.0.1:{}", PLAIN_RELAY[0]),
            Path::TlsRelay => format!("tcp:127.0.0.1:{}", TLS_RELAY[0]),
            Path::Connect => self.culvert.route(BACKEND).endpoint,
            Path::ConnectAgainst => {
                let running = self.against.as_ref().context("no other programs")?;
                running.route(BACKEND).endpoint
            }
            Path::InterceptEbpf => format!("tcp:{}:{BACKEND}", self.vip),
            Path::Konnectivity => self.others.by_konnectivity(BACKEND)?.endpoint,
            Path::Frp => self.others.by_frp()?.endpoint,
            Path::FrpNoMux => self.others.by_frp_no_mux()?.endpoint,
            Path::Rathole => self.others.by_rathole()?.endpoint,
            Path::ConnectByPeer
            | Path::ConnectTls
            | Path::ConnectDirect
            | Path::InterceptNft
            | Path::SimpleTlsRelay
            | Path::Redirector => bail!("no {} over a link of packets", path.name()),
        })
    }

    /// Counts the bytes on the link, IP headers and both ways, while nothing is asked for.
    fn idle(&mut self, pace: Pace) -> Result<Figures> {
        // Its bytes would count too. This is the last job of its link.
        self.others = Others::default();
        self.against = None;
        let time = match pace {
            Pace::Quick => IDLE / 4,
            Pace::Full => IDLE,
        };
        let before = self.bytes_once_quiet()?;
        wait::throughout("nothing is asked for", time, || self.check())?;
        let kilobytes = (self.bytes()? - before) as f64 / 1e3;
        let an_hour = kilobytes * 3600.0 / time.as_secs_f64();
        Ok(Figures::from([("kilobytes_an_hour".to_owned(), an_hour)]))
    }

    /// The bytes so far, once all handshakes of the relay's connections are over.
    fn bytes_once_quiet(&mut self) -> Result<u64> {
        let started = Instant::now();
        let mut before = self.bytes()?;
        while started.elapsed() < START_TIME {
            wait::throughout("nothing is asked for", QUIET, || self.check())?;
            let now = self.bytes()?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        bail!("the link is not quiet after {START_TIME:?}")
    }

    fn bytes(&self) -> Result<u64> {
        let mut ip = Command::new("nsenter");
        ip.arg(format!("--net={}", self.cloud.display()));
        ip.args(["ip", "-json", "-statistics", "link", "show", DEVICE]);
        let text = workspace::output(&mut ip)?;
        let device: serde_json::Value = serde_json::from_str(&text).context("ip's answer")?;
        let counters = &device[0]["stats64"];
        let received = counters["rx"]["bytes"].as_u64();
        let sent = counters["tx"]["bytes"].as_u64();
        match (received, sent) {
            (Some(received), Some(sent)) => Ok(received + sent),
            _ => bail!("{DEVICE} has no counters: {text}"),
        }
    }
}

pub(crate) fn starters<'lab>(lab: &'lab Lab, programs: &FilePath) -> [Starter<'lab>; 2] {
    [Host::Cloud, Host::Edge1].map(|host| Starter {
        site: lab.site(host),
        programs: programs.to_path_buf(),
    })
}

pub(crate) fn start_load(cloud: &Starter<'_>, edge: &Starter<'_>) -> Result<Load> {
    let listen = format!("0.0.0.0:{BACKEND}");
    let mut load = cloud.command("culvert-bench");
    load.args(["load", "--listen", &listen, "--netns"])
        .arg(edge.site.netns());
    Load::start(&mut load)
}

/// Starts the other programs of Culvert, if there are any.
fn start_against(lab: &Lab, settings: &Settings<'_>) -> Result<Option<Culvert>> {
    let Some(programs) = settings.against else {
        return Ok(None);
    };
    let [cloud, edge] = starters(lab, programs);
    let config = PairConfig {
        name: "against",
        port: 7600,
        tunnels: settings.tunnels,
    };
    Ok(Some(Culvert::start(
        &cloud,
        &edge,
        &config,
        CLOUD,
        &[BACKEND],
    )?))
}

/// Starts the link, and waits until each end has its device.
pub(crate) fn start_link(
    cloud: &Starter<'_>,
    edge: &Starter<'_>,
    args: &[String],
) -> Result<Process> {
    let mut command = cloud.command("culvert-bench");
    command.args(["link", "--device", DEVICE]).args(args);
    for (end, starter) in [("--cloud", cloud), ("--edge", edge)] {
        command.arg(end).arg(starter.site.netns());
    }
    let mut process = cloud.site.start_process("link", &mut command)?;
    for starter in [cloud, edge] {
        wait::until("the link has its device", START_TIME, || {
            process.check()?;
            ip(starter, &format!("link show {DEVICE}"))
        })?;
    }
    Ok(process)
}

/// The link of these settings, for [`start_link`].
fn link_arguments(settings: &Settings<'_>) -> Vec<String> {
    let link = settings.link;
    let mut args: Vec<String> = Vec::new();
    for (name, value) in [
        ("round-trip", u64::from(link.round_trip())),
        ("up", link.up()),
        ("down", DOWN),
        ("queue", link.queue()),
        ("seed", settings.seed.into()),
    ] {
        args.push(format!("--{name}={value}"));
    }
    for disturbance in link.disturbances() {
        args.push((*disturbance).to_owned());
    }
    args
}

/// Limits the buffers of connections to what the hosts of users have.
pub(crate) fn set_buffers(starter: &Starter<'_>) -> Result<()> {
    for setting in BUFFERS {
        starter.site.output("sysctl", ["-qw", setting])?;
    }
    Ok(())
}

/// Gives the device of one end its address, and leads to the other end through it.
fn set_up_device(starter: &Starter<'_>, own: &str, other: &str, congestion: &str) -> Result<()> {
    set_buffers(starter)?;
    ip(starter, &format!("addr add {own} dev {DEVICE}"))?;
    ip(
        starter,
        &format!("link set {DEVICE} txqueuelen {DEVICE_QUEUE} up"),
    )?;
    // The route sets it: as the default of a namespace, Linux accepts only what the machine allows
    // to all programs.
    ip(
        starter,
        &format!("route add {other} dev {DEVICE} congctl {congestion}"),
    )
}

pub(crate) fn ip(starter: &Starter<'_>, args: &str) -> Result<()> {
    starter.site.output("ip", args.split(' ')).map(drop)
}

/// Starts a relay over the link, with TLS if there is a file for the certificate.
fn start_relay(
    cloud: &Starter<'_>,
    edge: &Starter<'_>,
    name: &str,
    [near, far]: [u16; 2],
    certificate: Option<&PathBuf>,
) -> Result<[Process; 2]> {
    let far_half = relays::far(edge, &format!("{name}-far"), far, BACKEND, certificate)?;
    let far = format!("{EDGE}:{far}");
    let near_half = relays::near(cloud, &format!("{name}-near"), near, &far, certificate)?;
    Ok([near_half, far_half])
}
