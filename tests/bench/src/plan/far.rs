//! What is measured of an edge that is far away: behind a link of packets with delay, rate and loss,
//! as real TCP sees them. `--only far` measures it.

mod work;

pub(crate) use work::{Work, jobs};

/// What `--only` calls all jobs over these links.
pub(crate) const NAME: &str = "far";

/// The links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Nearer, fast, and without loss.
    Rtt20,
    /// Far, fast, and without loss.
    Rtt80,
    /// One packet of a thousand is lost, independently of the others.
    Loss01,
    /// One packet of a hundred is lost, likewise.
    Loss1,
    /// As many are lost, in bursts.
    Bursts1,
    /// Each packet takes up to 20 ms longer, and one of two hundred is overtaken by others.
    Jittery,
    /// Near and fast, and the agent has a fifth of a processor.
    Weak20,
    /// An uplink of 10 Mbit/s.
    Up10m,
    /// An uplink of 2 Mbit/s.
    Up2m,
}

impl Link {
    pub(crate) const ALL: [Self; 9] = [
        Self::Rtt20,
        Self::Rtt80,
        Self::Loss01,
        Self::Loss1,
        Self::Bursts1,
        Self::Jittery,
        Self::Weak20,
        Self::Up10m,
        Self::Up2m,
    ];

    /// The end of its rows' names.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Rtt20 => "_rtt20",
            Self::Rtt80 => "_rtt80",
            Self::Loss01 => "_loss0.1_rtt50",
            Self::Loss1 => "_loss1_rtt50",
            Self::Bursts1 => "_bursts1_rtt50",
            Self::Jittery => "_jitter20_rtt50",
            Self::Weak20 => "_rtt20_weak",
            Self::Up10m => "_up10m",
            Self::Up2m => "_up2m",
        }
    }

    /// Milliseconds of a round trip.
    pub(crate) fn round_trip(self) -> u16 {
        match self {
            Self::Rtt20 | Self::Weak20 => 20,
            Self::Rtt80 => 80,
            Self::Loss01 | Self::Loss1 | Self::Bursts1 | Self::Jittery => 50,
            Self::Up10m | Self::Up2m => 40,
        }
    }

    /// Bits per second from the edge to the cloud.
    pub(crate) fn up(self) -> u64 {
        match self {
            Self::Rtt20
            | Self::Rtt80
            | Self::Loss01
            | Self::Loss1
            | Self::Bursts1
            | Self::Jittery
            | Self::Weak20 => DOWN,
            Self::Up10m => 10_000_000,
            Self::Up2m => 2_000_000,
        }
    }

    /// Bytes that may wait at either end: as many as a round trip carries, and 200 ms of an uplink
    /// of 2 Mbit/s.
    pub(crate) fn queue(self) -> u64 {
        match self {
            Self::Rtt20 | Self::Weak20 => 125_000,
            Self::Rtt80 => 500_000,
            Self::Loss01 | Self::Loss1 | Self::Bursts1 | Self::Jittery => 312_500,
            Self::Up10m | Self::Up2m => 50_000,
        }
    }

    /// Percent of a processor that the agent may use, if it is limited.
    pub(crate) fn agent_percent(self) -> Option<u8> {
        if self == Self::Weak20 { Some(20) } else { None }
    }

    /// The loss and the jitter, as arguments of the worker.
    pub(crate) fn disturbances(self) -> &'static [&'static str] {
        match self {
            Self::Rtt20 | Self::Rtt80 | Self::Weak20 | Self::Up10m | Self::Up2m => &[],
            Self::Loss01 => &["--loss=0.001"],
            Self::Loss1 => &["--loss=0.01"],
            Self::Bursts1 => &["--loss=0.01", "--bursts=4"],
            Self::Jittery => &["--jitter=20", "--overtaken=0.005"],
        }
    }
}

/// Bits per second from the cloud to the edge.
pub(crate) const DOWN: u64 = 50_000_000;
