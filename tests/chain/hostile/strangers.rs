//! Strangers that connect to the agent port and send nothing, far more of them than there are
//! handshake permits.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN, PROXY_FOR_AGENTS};
use culvert_lab::host::Host;
use culvert_lab::inside;
use culvert_lab::wait::{self, PATIENCE};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn6, bind, connect, socket};

use crate::world::{self, World};

/// More than the handshake permits for strangers that have sent nothing.
const SILENT: u16 = 2400;
/// The cloud host's address. The test uses every address of its /64.
const CLOUD: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x203, 0, 0x113, 0, 0, 0, 1);
const SITE: [u16; 4] = [0xfd00, 0xbad, 0, 0];

#[test]
fn one_silent_64_locks_nobody_out() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let cloud = world.lab.site(Host::Cloud);
        cloud.output("sysctl", ["-qw", "net.ipv6.ip_nonlocal_bind=1"])?;
        cloud.output(
            "ip",
            ["-6", "route", "add", "local", "fd00:bad::/64", "dev", "lo"],
        )?;
        let one_address_each = |number: u16| {
            let [a, b, c, d] = SITE;
            let own = SocketAddrV6::new(Ipv6Addr::new(a, b, c, d, 0, 0, 1, number), 0, 0, 0);
            let stranger = socket(
                AddressFamily::Inet6,
                SockType::Stream,
                SockFlag::SOCK_CLOEXEC,
                None,
            )?;
            bind(stranger.as_raw_fd(), &SockaddrIn6::from(own))?;
            connect(
                stranger.as_raw_fd(),
                &SockaddrIn6::from(SocketAddrV6::new(CLOUD, 7400, 0, 0)),
            )?;
            Ok(TcpStream::from(stranger))
        };
        agents_get_in_beside(world, cloud.netns(), one_address_each)
    });
}

/// Behind a forwarder, all agents and all strangers have the same address.
#[test]
fn silent_strangers_behind_the_agents_own_forwarder_lock_no_agent_out() {
    world::with(&[Host::Edge1], Options::default(), |world| {
        let proxy: SocketAddr = PROXY_FOR_AGENTS.parse()?;
        let same_address = |_| Ok(TcpStream::connect_timeout(&proxy, PATIENCE)?);
        agents_get_in_beside(world, world.lab.site(Host::Edge2).netns(), same_address)
    });
}

/// While strangers hold as many connections as they can, one agent joins and another one
/// reconnects.
fn agents_get_in_beside(
    world: &mut World<'_>,
    strangers: &Path,
    connect: impl Fn(u16) -> Result<TcpStream> + Sync,
) -> Result<()> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| inside::run(strangers, || stay_silent(&connect, &over)));
        let done = agents_get_in(world);
        over.store(true, Ordering::Relaxed);
        crowd.join().expect("the crowd does not panic")?;
        done
    })
}

fn agents_get_in(world: &mut World<'_>) -> Result<()> {
    let cloud = world.lab.site(Host::Cloud);
    wait::until("the crowd is larger than its places", PATIENCE, || {
        let turned_away = |outcome: &str| {
            cloud.metric(
                PROXY_ADMIN,
                &format!("culvert_proxy_agent_connections_total{{outcome=\"{outcome}\"}}"),
            )
        };
        let busy = turned_away("busy")?;
        let evicted = turned_away("evicted")?;
        ensure!(busy + evicted > 0.0, "nobody was turned away");
        Ok(())
    })?;
    let join = world.culvert.create_token(Host::Edge2, &[])?;
    wait::until("edge-2 joins", PATIENCE, || {
        world.culvert.join(Host::Edge2, &join)
    })?;
    world.culvert.start_agent(Host::Edge2)?;
    world.culvert.wait_online(Host::Edge2)?;
    world.culvert.agent(0).kill()?;
    world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
    world.culvert.restart_agent(0, Host::Edge1)?;
    world.culvert.wait_online(Host::Edge1)?;
    world.check_greeting("edge-1", "edge-1")
}

/// Keeps all connections open that the proxy does not close, and replaces those that it closes.
fn stay_silent(connect: &impl Fn(u16) -> Result<TcpStream>, over: &AtomicBool) -> Result<()> {
    let mut crowd = Vec::new();
    for number in 0..SILENT {
        let stranger = connect(number).with_context(|| format!("stranger {number}"))?;
        stranger.set_nonblocking(true)?;
        crowd.push(stranger);
    }
    while !over.load(Ordering::Relaxed) {
        for (number, stranger) in (0..).zip(&mut crowd) {
            let waits = stranger
                .peek(&mut [0])
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            // A full queue is no reason to stop.
            if !waits && let Ok(again) = connect(number) {
                again.set_nonblocking(true)?;
                *stranger = again;
            }
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(())
}
