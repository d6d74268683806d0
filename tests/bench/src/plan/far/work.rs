//! What is measured over links of packets.

use super::Link;
use crate::load::Figures;
use crate::plan::{self, Direction, Distance, Job, Pace, Path, Row};

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// An answer of that many kB, after two seconds of silence.
    Scrape { kilobytes: usize, is_kept: bool },
    /// Streams that move all they can one way.
    Bulk {
        direction: Direction,
        streams: usize,
    },
    /// A copy that the edge sends, beside one on a direct connection over the same link.
    Fairness,
    /// 100 bytes there and back, beside two streams that the edge sends, on connections that are
    /// older than those or `is_late`.
    PingUnderBulk { is_late: bool },
    /// The same on connections that are mostly idle, with nothing beside them.
    Thin { connections: usize },
    /// 100 bytes there and back each 300 ms, as keystrokes are, beside a copy from the edge.
    Keystrokes,
    /// Nothing: what the tunnels send by themselves.
    Idle,
}

/// All jobs over these links.
pub(crate) fn jobs() -> Vec<Job> {
    Link::ALL
        .into_iter()
        .flat_map(|link| {
            works(link).into_iter().map(move |work| Job {
                work: plan::Work::Far(work),
                distance: Distance::Packets(link),
            })
        })
        .collect()
}

fn works(link: Link) -> Vec<Work> {
    let alone = Work::Thin { connections: 1 };
    let thin = Work::Thin { connections: 16 };
    match link {
        Link::Rtt20 => scrapes().collect(),
        Link::Rtt80 => scrapes().chain([Work::Fairness, Work::Idle]).collect(),
        Link::Loss01 => bulk().collect(),
        Link::Loss1 | Link::Jittery => bulk().chain([alone, thin]).collect(),
        Link::Bursts1 => vec![thin],
        Link::Weak20 => bulk()
            .chain([Work::Scrape {
                kilobytes: 300,
                is_kept: true,
            }])
            .collect(),
        Link::Up10m => beside_copies().chain([Work::Fairness]).collect(),
        Link::Up2m => beside_copies().collect(),
    }
}

fn scrapes() -> impl Iterator<Item = Work> {
    [50, 300]
        .into_iter()
        .flat_map(|kilobytes| [false, true].map(|is_kept| Work::Scrape { kilobytes, is_kept }))
}

fn beside_copies() -> impl Iterator<Item = Work> {
    [
        Work::PingUnderBulk { is_late: false },
        Work::PingUnderBulk { is_late: true },
        Work::Keystrokes,
    ]
    .into_iter()
}

fn bulk() -> impl Iterator<Item = Work> {
    [1, 8].into_iter().flat_map(|streams| {
        [Direction::Up, Direction::Down].map(|direction| Work::Bulk { direction, streams })
    })
}

/// The rows of the median and of the slowest but one of 100.
fn percentiles(begin: &str, end: &str) -> Vec<Row> {
    vec![
        Row::new(format!("{begin}_p50{end}"), "us", "p50_us", Path::Direct),
        Row::new(format!("{begin}_p99{end}"), "us", "p99_us", Path::Direct),
    ]
}

impl Work {
    pub(crate) fn paths(self) -> &'static [Path] {
        match self {
            Self::Scrape { is_kept: true, .. } => &[
                Path::Direct,
                Path::DirectNew,
                Path::PlainRelay,
                Path::TlsRelay,
                Path::Connect,
                Path::InterceptEbpf,
            ],
            Self::Idle => &[Path::Connect],
            Self::Scrape { .. }
            | Self::Bulk { .. }
            | Self::Fairness
            | Self::PingUnderBulk { .. }
            | Self::Keystrokes
            | Self::Thin { .. } => &[
                Path::Direct,
                Path::PlainRelay,
                Path::TlsRelay,
                Path::Connect,
                Path::InterceptEbpf,
            ],
        }
    }

    /// The rows, without the end of their names.
    pub(crate) fn rows(self) -> Vec<Row> {
        match self {
            Self::Scrape { kilobytes, is_kept } => {
                let (kind, beside) = if is_kept {
                    ("kept", Path::DirectNew)
                } else {
                    ("new", Path::Direct)
                };
                let name = format!("scrape_{kilobytes}k_{kind}");
                vec![Row::new(name, "us", "p50_us", beside)]
            }
            Self::Bulk { direction, streams } => {
                let name = format!("bulk_{}_{streams}", direction.name());
                vec![Row::new(name, "Mbit/s", "mbit_per_second", Path::Direct)]
            }
            Self::Fairness => {
                let name = "direct_beside_copy".to_owned();
                vec![Row::new(
                    name,
                    "of the link",
                    "share_of_direct",
                    Path::Direct,
                )]
            }
            Self::PingUnderBulk { is_late: false } => percentiles("ping", "_under_bulk"),
            Self::PingUnderBulk { is_late: true } => percentiles("ping", "_late_under_bulk"),
            Self::Keystrokes => percentiles("keystroke", ""),
            Self::Thin { connections } => {
                let name = format!("ping_p99_{connections}");
                vec![Row::new(name, "us", "p99_us", Path::Direct)]
            }
            Self::Idle => {
                let name = "idle_traffic".to_owned();
                vec![Row::new(name, "kB/h", "kilobytes_an_hour", Path::Connect)]
            }
        }
    }

    /// The line for the load; nothing to do if there is none. `direct` leads to the edge without
    /// Culvert.
    pub(crate) fn line(
        self,
        path: Path,
        endpoint: &str,
        direct: &str,
        pace: Pace,
    ) -> Option<String> {
        let seconds = match pace {
            Pace::Quick => 2,
            Pace::Full => 8,
        };
        let line = match self {
            Self::Scrape { kilobytes, is_kept } => {
                let bytes = kilobytes * 1_000;
                let count = seconds / 2;
                let reuse = if is_kept && path != Path::DirectNew {
                    "kept"
                } else {
                    "new"
                };
                format!("scrape {bytes} {count} 2 {reuse} {endpoint}")
            }
            Self::Bulk { direction, streams } => {
                format!("bulk {endpoint} {} {streams} {seconds}", direction.name())
            }
            Self::Fairness => format!("fairness {endpoint} {direct} {seconds}"),
            // The cloud's clients receive what the edge sends.
            Self::PingUnderBulk { is_late } => {
                // An agent has one more tunnel after some seconds of bulk.
                let warm_up = if is_late { "8 --late" } else { "4" };
                format!("ping {endpoint} 4 2 {seconds} --direction down --warm-up {warm_up}")
            }
            Self::Keystrokes => {
                let seconds = 3 * seconds;
                format!("ping {endpoint} 1 1 {seconds} --direction down --warm-up 2 --pause 0.3")
            }
            Self::Thin { connections } => {
                format!("ping {endpoint} {connections} 0 {seconds} --pause 0.2")
            }
            Self::Idle => return None,
        };
        Some(line)
    }

    /// What the rows call by the same names: pings beside bulk count beyond the round trip.
    pub(crate) fn counted(self, mut figures: Figures, link: Link) -> Figures {
        if let Self::PingUnderBulk { .. } | Self::Keystrokes = self {
            let round_trip = f64::from(link.round_trip()) * 1e3;
            figures.values_mut().for_each(|us| *us -= round_trip);
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_beside_bulk_count_beyond_the_round_trip() {
        let figures = || Figures::from([("p50_us".to_owned(), 45_000.0)]);
        let counted = |work: Work| work.counted(figures(), Link::Up2m)["p50_us"];
        assert_eq!(counted(Work::PingUnderBulk { is_late: true }), 5_000.0);
        assert_eq!(counted(Work::Thin { connections: 16 }), 45_000.0);
    }
}
