//! The measured and the measuring programs, all on the loopback of one lab host.
//!
//! The load in the host's own cgroup is seen by the connect hooks. A second load, in another cgroup
//! of the same network, is not, so nftables steers it. Over a long link, each hop between two
//! programs, and direct TCP, goes through a relay that delays it.

mod culvert;
mod far;
pub(crate) mod relays;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path as FilePath;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::host::Host;

use culvert_lab::Lab;
use culvert_lab::site::Site;

use crate::culvert::{self as pair, PairConfig};
use crate::load::{Figures, Load};
use crate::others::Others;
use crate::plan::{Distance, Job, Path};
use crate::starter::{Route, Starter};
use culvert::{Culvert, Proxies};
use far::Link;
use relays::Relays;

/// The backend ports of the two loads: with connect hooks, and without.
const BACKENDS: [u16; 2] = [9100, 9101];
/// Time for programs that start side by side on two cores.
const START_TIME: Duration = Duration::from_secs(20);

/// Where other programs of Culvert are, beside those that are measured.
const AGAINST: PairConfig = PairConfig {
    name: "against",
    port: 7600,
    tunnels: 2,
};

/// All programs, running. Dropping it ends them.
pub(super) struct World<'lab> {
    hooked: Load,
    unhooked: Load,
    relays: Relays,
    others: Others,
    against: Option<pair::Culvert>,
    links: Vec<Link>,
    culvert: Culvert<'lab>,
}

impl<'lab> World<'lab> {
    /// A node's name, as clients look it up.
    pub(super) const DNS_NAME: &'static str = "near.edge.internal";

    /// Starts what the jobs need; `programs` is the folder of the binaries.
    /// `against` is that of other ones of Culvert. `congestion` is the TCP congestion control.
    pub(super) fn start(
        lab: &'lab Lab,
        programs: &FilePath,
        against: Option<&FilePath>,
        congestion: &str,
        jobs: &[Job],
    ) -> Result<Self> {
        let starter = Starter {
            site: lab.site(Host::Cloud),
            programs: programs.to_path_buf(),
        };
        // Closed connections must not use up the ports of the next job.
        starter.site.output(
            "sysctl",
            [
                "-qw",
                "net.ipv4.tcp_tw_reuse=1",
                "net.ipv4.ip_local_port_range=10000 65000",
            ],
        )?;
        set_congestion(starter.site, congestion)?;
        let worker = starter.programs.join("culvert-bench");
        let hooked = load(&mut starter.site.command(&worker), BACKENDS[0])?;
        let elsewhere = &mut lab
            .site(Host::Edge1)
            .command_in(starter.site.netns(), &worker);
        let unhooked = load(elsewhere, BACKENDS[1])?;
        let relays = Relays::start(&starter)?;
        let site = starter.site;
        let others = if jobs.iter().any(Job::has_others) {
            Others::start(site, site, "127.0.0.1", BACKENDS[0])?
        } else {
            Others::default()
        };
        let against = match against {
            Some(programs) => Some(start_against(site, programs)?),
            None => None,
        };
        let proxies = if jobs.iter().any(Job::is_by_peer) {
            Proxies::Two
        } else {
            Proxies::One
        };
        let mut culvert = Culvert::start(starter, proxies)?;
        let mut links = Vec::new();
        if jobs.iter().any(Job::needs_long_link) {
            for distance in Distance::LINKS {
                links.push(Link::start(&mut culvert, distance)?);
            }
        }
        Ok(Self {
            hooked,
            unhooked,
            relays,
            others,
            against,
            links,
            culvert,
        })
    }

    /// Fails if one of the programs has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.relays.check()?;
        self.others.check()?;
        if let Some(against) = &mut self.against {
            against.check()?;
        }
        self.culvert.check()?;
        self.links.iter_mut().try_for_each(Link::check)
    }

    /// The load whose clients use that path.
    pub(super) fn load(&mut self, path: Path) -> &mut Load {
        if path == Path::InterceptNft {
            &mut self.unhooked
        } else {
            &mut self.hooked
        }
    }

    /// The route of that path to a backend at that distance.
    pub(super) fn route(&self, path: Path, distance: Distance) -> Result<Route> {
        if let Some(index) = Distance::LINKS.iter().position(|link| *link == distance) {
            let link = self.links.get(index).context("the long links are not up")?;
            return link.route(path, &self.relays, &self.culvert);
        }
        Ok(match path {
            Path::Direct | Path::DirectNew => Route {
                endpoint: tcp(BACKENDS[0]),
                pids: Vec::new(),
            },
            Path::PlainRelay => self.relays.plain(),
            Path::TlsRelay => self.relays.tls(),
            Path::SimpleTlsRelay => self.relays.simple_tls(),
            Path::Konnectivity => self.others.by_konnectivity(BACKENDS[0])?,
            Path::Frp => self.others.by_frp()?,
            Path::FrpNoMux => self.others.by_frp_no_mux()?,
            Path::Rathole => self.others.by_rathole()?,
            Path::ConnectAgainst => {
                let running = self.against.as_ref();
                running.context("no other programs")?.route(BACKENDS[0])
            }
            Path::Connect | Path::Redirector => self.culvert.by_connect("near"),
            Path::ConnectTls => self.culvert.by_tls("near"),
            Path::ConnectDirect => self.culvert.by_direct(),
            Path::ConnectByPeer => self.culvert.by_peer("near"),
            Path::InterceptEbpf => self.culvert.by_address("near", BACKENDS[0])?,
            Path::InterceptNft => self.culvert.by_address("near", BACKENDS[1])?,
        })
    }

    /// Restarts the proxy and the agent, because they keep memory that they have used.
    pub(super) fn start_afresh(&mut self) -> Result<()> {
        self.culvert.start_afresh()
    }

    /// Waits until the second proxy, if there is one, has no tunnel of its own to the near node.
    pub(super) fn wait_for_peer(&self) -> Result<()> {
        self.culvert.wait_for_peer()
    }

    /// Measures the memory of a tunnel on the proxy.
    pub(super) fn idle_tunnels(&mut self) -> Result<Figures> {
        self.culvert.idle_tunnels()
    }

    /// Makes the redirector steer that many destinations in addition to those of the bench.
    pub(super) fn set_destinations(&mut self, count: usize) -> Result<()> {
        self.culvert.set_destinations(count)
    }

    /// A backend at an address that no edge node has.
    pub(super) fn not_steered(&self) -> SocketAddr {
        (Host::Cloud.address(), BACKENDS[0]).into()
    }

    /// The redirector's DNS server.
    pub(super) fn dns(&self) -> SocketAddr {
        (Host::Cloud.address(), 53).into()
    }
}

/// Gives connections of the host to itself this TCP congestion control. By the routes: as the default
/// of a namespace, Linux accepts only what the machine allows to all programs.
fn set_congestion(site: &Site, congestion: &str) -> Result<()> {
    let routes = site.output("ip", "-4 route show table local type local".split(' '))?;
    for route in routes.lines() {
        let mut change: Vec<&str> = vec!["route", "change"];
        change.extend(route.split_whitespace());
        change.extend(["table", "local", "congctl", congestion]);
        site.output("ip", change)?;
    }
    Ok(())
}

fn start_against(site: &Site, programs: &FilePath) -> Result<pair::Culvert> {
    let starter = Starter {
        site,
        programs: programs.to_path_buf(),
    };
    pair::Culvert::start(&starter, &starter, &AGAINST, "127.0.0.1", &BACKENDS)
}

fn load(command: &mut Command, port: u16) -> Result<Load> {
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).to_string();
    Load::start(command.args(["load", "--listen", &listen]))
}

fn tcp(port: u16) -> String {
    format!("tcp:{}", local(port))
}

/// A port of the host's loopback.
fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}
