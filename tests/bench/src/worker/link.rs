//! A link of packets between two network namespaces: a TUN device in each, and this process between
//! them, which is the line. Or as many links as the edge has addresses.

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
/// Where the addresses of an IPv4 packet end.
const SOURCE: usize = 15;
const DESTINATION: usize = 19;

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
    /// As many links, one for each IPv4 address of the edge, whose last byte is its number: some are
    /// as the other arguments say, the others shorter, slower or with less loss
    #[arg(long)]
    links: Option<u8>,
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
    let mut down = Forwarder::new(&cloud, &edge, Lines::new(args.links, downwards, args.seed));
    let mut up = Forwarder::new(&edge, &cloud, Lines::new(args.links, upwards, !args.seed));
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
        down.receive(started, DESTINATION)?;
        up.receive(started, SOURCE)?;
    }
}

/// The lines of one direction.
enum Lines {
    One(Line),
    /// For each address of the edge, by its last byte.
    OfAddresses(BTreeMap<u8, Line>),
}

impl Lines {
    fn new(links: Option<u8>, direction: Direction, seed: u64) -> Self {
        let Some(links) = links else {
            return Self::One(Line::new(direction, seed));
        };
        let mut lines = BTreeMap::new();
        for number in 1..=links {
            let seed = seed.wrapping_add(u64::from(number) << 32);
            lines.insert(number, Line::new(varied(direction, number), seed));
        }
        Self::OfAddresses(lines)
    }

    /// The line of a packet in which the edge's address ends with the byte at `edge`; `None`: no
    /// edge has it.
    fn line(&mut self, packet: &[u8], edge: usize) -> Option<&mut Line> {
        match self {
            Self::One(line) => Some(line),
            Self::OfAddresses(_) if packet.first()? >> 4 != 4 => None,
            Self::OfAddresses(lines) => lines.get_mut(packet.get(edge)?),
        }
    }
}

/// One direction of a link of many: one of four delays, five rates and three losses.
fn varied(direction: Direction, number: u8) -> Direction {
    let number = usize::from(number);
    let slower = [1, 2, 5, 10, 25][number % 5];
    let loss = match (direction.loss, number % 3) {
        (Loss::Random { share }, 1) => Loss::Random {
            share: share / 10.0,
        },
        (_, 2) => Loss::None,
        (loss, _) => loss,
    };
    Direction {
        delay: direction.delay * [4, 3, 2, 1][number % 4] / 4,
        rate: direction.rate / slower,
        queue: direction.queue / slower,
        loss,
        ..direction
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
    lines: Lines,
    /// Packets under way, by the time of their arrival and their number.
    packets: BTreeMap<(Duration, u64), Vec<u8>>,
    received: u64,
    unused: Vec<Vec<u8>>,
}

impl<'a> Forwarder<'a> {
    fn new(from: &'a File, to: &'a File, lines: Lines) -> Self {
        Self {
            from,
            to,
            lines,
            packets: BTreeMap::new(),
            received: 0,
            unused: Vec::new(),
        }
    }

    /// Receives all packets that wait in the device. The queue bounds how many are under way. In
    /// each, the edge's address ends with the byte at `edge`.
    fn receive(&mut self, started: Instant, edge: usize) -> Result<()> {
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
            let line = self.lines.line(&packet, edge);
            match line.and_then(|line| line.enter(started.elapsed(), packet.len() as u64)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTION: Direction = Direction {
        delay: Duration::from_millis(80),
        rate: 50_000_000,
        queue: 1_250_000,
        loss: Loss::Random { share: 0.01 },
        jitter: Duration::ZERO,
        overtaken: 0.0,
    };

    /// An IPv4 packet without content.
    fn packet(source: u8, destination: u8) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[SOURCE] = source;
        packet[DESTINATION] = destination;
        packet
    }

    #[test]
    fn a_packet_takes_the_line_of_the_edges_address() {
        let mut lines = Lines::new(Some(3), DIRECTION, 7);
        assert!(lines.line(&packet(3, 9), SOURCE).is_some());
        assert!(lines.line(&packet(9, 3), DESTINATION).is_some());
        assert!(lines.line(&packet(3, 9), DESTINATION).is_none());
        assert!(lines.line(&packet(4, 1), SOURCE).is_none());
        assert!(lines.line(&[0x60; 40], SOURCE).is_none(), "IPv6");
        assert!(lines.line(&[], SOURCE).is_none());
    }

    #[test]
    fn sixty_links_are_all_different() {
        let mut seen: Vec<Direction> = Vec::new();
        for number in 1..=60 {
            let direction = varied(DIRECTION, number);
            assert!(!seen.contains(&direction), "{number}: {direction:?}");
            seen.push(direction);
        }
    }
}
