//! A link of packets between two network namespaces: a TUN device in each, and this process between
//! them, which is the line.

mod tun;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use culvert_bench::line::{Direction, Line, Loss};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};

/// The longest IP packet that a device of the default MTU passes.
const MTU: usize = 1500;

/// Arguments of the link. *Up* is from the edge to the cloud.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The namespace of the cloud
    #[arg(long)]
    cloud: PathBuf,
    /// The namespace of the edge
    #[arg(long)]
    edge: PathBuf,
    /// The name of both devices
    #[arg(long)]
    device: String,
    /// Milliseconds there and back
    #[arg(long)]
    round_trip: u64,
    /// Bits per second
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    up: u64,
    /// Bits per second
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    down: u64,
    /// Bytes that wait in each direction
    #[arg(long)]
    queue: u64,
    /// Lost share of the packets of each direction
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Lose as many in bursts, of that many packets in the mean
    #[arg(long, value_name = "PACKETS", requires = "loss")]
    bursts: Option<f64>,
    /// Milliseconds that a packet may take longer, in each direction; none overtakes another for it
    #[arg(long, default_value_t = 0)]
    jitter: u64,
    /// Share of the packets of each direction that others overtake
    #[arg(long, default_value_t = 0.0)]
    overtaken: f64,
    /// Chooses the packets that are lost or late
    #[arg(long)]
    seed: u64,
}

/// Serves until it is killed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let loss = loss(args)?;
    let upwards = Direction {
        delay: Duration::from_millis(args.round_trip) / 2,
        rate: args.up,
        queue: args.queue,
        loss,
        jitter: Duration::from_millis(args.jitter),
        overtaken: args.overtaken,
    };
    let downwards = Direction {
        rate: args.down,
        ..upwards
    };
    let cloud = tun::open(&args.cloud, &args.device)?;
    let edge = tun::open(&args.edge, &args.device)?;
    let mut down = Forwarder::new(&cloud, &edge, Line::new(downwards, args.seed));
    let mut up = Forwarder::new(&edge, &cloud, Line::new(upwards, !args.seed));
    let started = Instant::now();
    loop {
        let now = started.elapsed();
        let due = [down.deliver(now)?, up.deliver(now)?];
        let timeout = due.into_iter().flatten().min().map(|at| at - now);
        let mut ready = [&cloud, &edge].map(|tun| PollFd::new(tun.as_fd(), PollFlags::POLLIN));
        match ppoll(&mut ready, timeout.map(Into::into), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        down.receive(started)?;
        up.receive(started)?;
    }
}

/// In bursts, half of the packets are lost while the line is bad.
fn loss(args: &Args) -> Result<Loss> {
    ensure!(
        (0.0..0.5).contains(&args.loss),
        "a loss of {} is not below a half",
        args.loss
    );
    Ok(match args.bursts {
        None if args.loss == 0.0 => Loss::None,
        None => Loss::Random { share: args.loss },
        Some(packets) => {
            ensure!(packets >= 1.0, "bursts of {packets} packets");
            let recovers = 1.0 / packets;
            let share = 0.5;
            let bad = args.loss * 2.0;
            Loss::Bursts {
                worsens: recovers * bad / (1.0 - bad),
                recovers,
                share,
            }
        }
    })
}

/// One direction between two devices.
struct Forwarder<'a> {
    from: &'a File,
    to: &'a File,
    line: Line,
    /// Packets under way, by the time of their arrival and their number.
    packets: BTreeMap<(Duration, u64), Vec<u8>>,
    received: u64,
    unused: Vec<Vec<u8>>,
}

impl<'a> Forwarder<'a> {
    fn new(from: &'a File, to: &'a File, line: Line) -> Self {
        Self {
            from,
            to,
            line,
            packets: BTreeMap::new(),
            received: 0,
            unused: Vec::new(),
        }
    }

    /// Receives all packets that wait in the device. The queue bounds how many are under way.
    fn receive(&mut self, started: Instant) -> Result<()> {
        loop {
            let mut packet = self.unused.pop().unwrap_or_default();
            packet.resize(MTU, 0);
            match (&mut &*self.from).read(&mut packet) {
                Ok(count) => packet.truncate(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.unused.push(packet);
                    return Ok(());
                }
                Err(error) => return Err(error).context("read a packet from the device"),
            }
            match self.line.enter(started.elapsed(), packet.len() as u64) {
                Some(arrival) => {
                    self.received += 1;
                    self.packets.insert((arrival, self.received), packet);
                }
                None => self.unused.push(packet),
            }
        }
    }

    /// Delivers what has arrived; returns when the next packet does.
    fn deliver(&mut self, now: Duration) -> Result<Option<Duration>> {
        while let Some(first) = self.packets.first_entry() {
            let (arrival, _) = *first.key();
            if arrival > now {
                return Ok(Some(arrival));
            }
            let packet = first.remove();
            match (&mut &*self.to).write(&packet) {
                // A device that is not up yet refuses packets.
                Err(error) if error.raw_os_error() != Some(Errno::EIO as i32) => {
                    return Err(error).context("write a packet to the device");
                }
                _ => self.unused.push(packet),
            }
        }
        Ok(None)
    }
}
