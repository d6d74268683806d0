//! What is measured: rows, the paths each is measured on, and the jobs that find them.

pub(super) mod far;
mod path;

use std::time::Duration;

pub(super) use path::Path;

const ALL: &[Path] = &[
    Path::Direct,
    Path::PlainRelay,
    Path::TlsRelay,
    Path::Connect,
    Path::InterceptEbpf,
    Path::InterceptNft,
];
/// What moves bytes near the clients.
const NEAR: &[Path] = &[
    Path::Direct,
    Path::PlainRelay,
    Path::TlsRelay,
    Path::SimpleTlsRelay,
    Path::Connect,
    Path::ConnectTls,
    Path::ConnectDirect,
    Path::InterceptEbpf,
    Path::InterceptNft,
];
const RELAYED: &[Path] = &[
    Path::PlainRelay,
    Path::TlsRelay,
    Path::Connect,
    Path::InterceptEbpf,
    Path::InterceptNft,
];
const STEERED: &[Path] = &[Path::InterceptEbpf, Path::InterceptNft];
const HOPS: &[Path] = &[Path::Connect, Path::ConnectByPeer];
const CULVERT: &[Path] = &[Path::Connect, Path::InterceptEbpf, Path::InterceptNft];

/// How far away the edge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distance {
    /// On the same loopback.
    Near,
    /// The same, in rows that compare the proxy which has the tunnels with another one.
    NearByPeer,
    /// Behind a link with a round trip of 20 ms.
    Ms20,
    /// Behind a link with a round trip of 80 ms.
    Ms80,
    /// Behind a link of packets.
    Packets(far::Link),
    /// Many edges, each behind a link of packets of its own.
    Fleet,
}

impl Distance {
    /// The long links.
    pub(super) const LINKS: [Self; 2] = [Self::Ms20, Self::Ms80];

    /// Milliseconds of a round trip.
    pub(super) fn round_trip(self) -> u16 {
        match self {
            Self::Near | Self::NearByPeer | Self::Fleet => 0,
            Self::Ms20 => 20,
            Self::Ms80 => 80,
            Self::Packets(link) => link.round_trip(),
        }
    }

    fn suffix(self) -> String {
        match self {
            Self::Near => String::new(),
            Self::NearByPeer => "_by_peer".to_owned(),
            Self::Ms20 | Self::Ms80 => format!("_rtt{}", self.round_trip()),
            Self::Packets(link) => link.suffix().to_owned(),
            Self::Fleet => format!("_{EDGES}_links"),
        }
    }
}

/// The direction of bulk, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

impl Direction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Streams that move all they can one way.
    Bulk {
        direction: Direction,
        streams: usize,
    },
    /// Streams that together copy a fixed size, until the last one has ended.
    Copies {
        direction: Direction,
        streams: usize,
    },
    /// Connections with 100 bytes there and back, beside bulk streams.
    Ping { connections: usize, bulk: usize },
    /// Requests of 500 bytes and answers of 100 kB, one after another on each connection.
    Scrapes { connections: usize },
    /// Connect, ping once, close; 32 at a time.
    NewConnections,
    /// From the begin of a connect to the first answer, one after another. On the link of the other
    /// paths a connect takes no time.
    FirstAnswer,
    /// One bulk stream down, beside readers that do not read.
    Neighbour { stalled: usize },
    /// What the proxy holds for readers that do not read.
    StalledReaders,
    /// What it holds for them when their backends send byte by byte.
    SmallFrames,
    /// Streams that do nothing.
    IdleStreams,
    /// Tunnels that carry nothing.
    IdleTunnels,
    /// Bare `connect()` calls to what is not steered, beside that many destinations that are.
    ConnectCost { destinations: usize },
    /// DNS queries for a node's name.
    Dns,
    /// Work over a link of packets.
    Far(far::Work),
    /// An answer of 100 kB from every edge at once, on connections that are kept.
    ScrapeAll,
}

/// How long a measurement takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Quick,
    Full,
}

impl Pace {
    /// How long one measurement takes.
    pub(super) fn time(self) -> Duration {
        match self {
            Self::Quick => Duration::from_millis(500),
            Self::Full => Duration::from_secs(1),
        }
    }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// What the load calls it.
    pub(super) figure: &'static str,
    /// The path that the others are compared with.
    pub(super) beside: Path,
}

/// What is run once for each path in each round, and finds one or more rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) distance: Distance,
}

/// Edges of the fleet.
pub(super) const EDGES: u8 = 200;

/// Readers that do not read, where their memory is measured.
pub(super) const STALLED: usize = 100;

/// All jobs but those over links of packets. Memory comes first: a program that has moved bulk keeps
/// memory that would hide what an idle stream takes.
fn jobs() -> Vec<Job> {
    let mut jobs = [
        Work::IdleStreams,
        Work::IdleTunnels,
        Work::StalledReaders,
        Work::SmallFrames,
    ]
    .map(near)
    .to_vec();
    let bulk = [1, 8, 64].into_iter().flat_map(|streams| {
        [Direction::Up, Direction::Down].map(|direction| Work::Bulk { direction, streams })
    });
    let pings = [0, 4]
        .into_iter()
        .flat_map(|bulk| [1, 64].map(|connections| Work::Ping { connections, bulk }));
    let moving: Vec<Work> = bulk.chain(pings).collect();
    jobs.extend(moving.iter().copied().map(near));
    for streams in [1, 8, 64] {
        for direction in [Direction::Up, Direction::Down] {
            jobs.push(near(Work::Copies { direction, streams }));
        }
    }
    jobs.push(near(Work::Scrapes { connections: 64 }));
    jobs.push(near(Work::NewConnections));
    jobs.extend([1, 20, 100].map(|stalled| near(Work::Neighbour { stalled })));
    let distance = Distance::NearByPeer;
    for &work in &moving {
        if let Work::Bulk { streams: ..=8, .. } | Work::Ping { bulk: 0, .. } = work {
            jobs.push(Job { work, distance });
        }
    }
    for distance in Distance::LINKS {
        for &work in moving.iter().chain([&Work::FirstAnswer]) {
            jobs.push(Job { work, distance });
        }
    }
    jobs.extend([0, 1_000, 60_000].map(|destinations| near(Work::ConnectCost { destinations })));
    jobs.push(near(Work::Dns));
    jobs
}

fn near(work: Work) -> Job {
    Job {
        work,
        distance: Distance::Near,
    }
}

/// All jobs.
pub(super) fn all() -> Vec<Job> {
    let fleet = Job {
        work: Work::ScrapeAll,
        distance: Distance::Fleet,
    };
    [jobs(), far::jobs(), vec![fleet]].concat()
}

/// The jobs that find the rows of these names, or, where a name is not a row's, all rows whose names
/// contain it; `far` is the name of all rows over links of packets. All other jobs if no name is
/// given.
pub(super) fn chosen(only: &[String]) -> Vec<Job> {
    if only.is_empty() {
        return jobs();
    }
    let mut jobs = all();
    let rows: Vec<Row> = jobs.iter().flat_map(Job::rows).collect();
    let mut exact = Vec::new();
    let mut parts = Vec::new();
    for name in only {
        if rows.iter().any(|row| row.name == *name) {
            exact.push(name.as_str());
        } else {
            parts.push(name.as_str());
        }
    }
    let is_all_far = only.iter().any(|name| name == far::NAME);
    jobs.retain(|job| {
        is_all_far && job.packets().is_some()
            || job.rows().iter().any(|row| row.is_named(&exact, &parts))
    });
    jobs
}

impl Row {
    pub(super) fn new(
        name: impl Into<String>,
        unit: &'static str,
        figure: &'static str,
        beside: Path,
    ) -> Self {
        Self {
            name: name.into(),
            unit,
            figure,
            beside,
        }
    }

    /// Whether its name is one of `exact`, or contains one of `parts`.
    fn is_named(&self, exact: &[&str], parts: &[&str]) -> bool {
        exact.contains(&self.name.as_str()) || parts.iter().any(|part| self.name.contains(part))
    }
}

impl Job {
    /// Short, for the person watching.
    pub(super) fn name(&self) -> String {
        self.rows().swap_remove(0).name
    }

    /// The link of packets that it needs.
    pub(super) fn packets(&self) -> Option<far::Link> {
        match self.distance {
            Distance::Packets(link) => Some(link),
            Distance::Near
            | Distance::NearByPeer
            | Distance::Ms20
            | Distance::Ms80
            | Distance::Fleet => None,
        }
    }

    /// Whether it needs many edges.
    pub(super) fn is_of_fleet(&self) -> bool {
        self.distance == Distance::Fleet
    }

    /// Whether it needs a long link of connections.
    pub(super) fn needs_long_link(&self) -> bool {
        Distance::LINKS.contains(&self.distance)
    }

    /// Whether it needs a second proxy.
    pub(super) fn is_by_peer(&self) -> bool {
        self.distance == Distance::NearByPeer
    }

    /// Whether it counts memory: of programs that have done nothing before, as memory that was used
    /// is kept.
    pub(super) fn is_of_memory(&self) -> bool {
        matches!(
            self.work,
            Work::IdleStreams | Work::IdleTunnels | Work::StalledReaders | Work::SmallFrames
        )
    }

    /// What it is run on. `others` are the paths of other projects and of other programs of Culvert.
    pub(super) fn paths(&self, others: &[Path]) -> Vec<Path> {
        let mut paths = self.own_paths().to_vec();
        if self.has_others() {
            paths.extend(others);
        }
        paths
    }

    /// Whether other projects and other programs of Culvert are measured too, where they are named.
    pub(super) fn has_others(&self) -> bool {
        match self.distance {
            Distance::Near => self.moves(),
            Distance::Packets(_) => !matches!(self.work, Work::Far(far::Work::Idle)),
            Distance::NearByPeer | Distance::Ms20 | Distance::Ms80 | Distance::Fleet => false,
        }
    }

    fn moves(&self) -> bool {
        matches!(
            self.work,
            Work::Bulk { .. }
                | Work::Copies { .. }
                | Work::Ping { .. }
                | Work::Scrapes { .. }
                | Work::NewConnections
        )
    }

    fn own_paths(&self) -> &'static [Path] {
        match self.work {
            _ if self.is_by_peer() => HOPS,
            Work::Far(work) => work.paths(),
            Work::IdleStreams => RELAYED,
            Work::IdleTunnels | Work::StalledReaders | Work::SmallFrames => &[Path::Connect],
            Work::ConnectCost { .. } => STEERED,
            Work::FirstAnswer => CULVERT,
            Work::Dns => &[Path::Redirector],
            Work::ScrapeAll => &[
                Path::Direct,
                Path::DirectNew,
                Path::Connect,
                Path::InterceptEbpf,
            ],
            _ if self.moves() && self.distance == Distance::Near => NEAR,
            Work::Bulk { .. }
            | Work::Copies { .. }
            | Work::Ping { .. }
            | Work::Scrapes { .. }
            | Work::NewConnections
            | Work::Neighbour { .. } => ALL,
        }
    }

    /// What bulk is compared with, its processor time, and pings.
    fn moving_beside(&self) -> [Path; 3] {
        match self.distance {
            Distance::Near => [Path::TlsRelay, Path::TlsRelay, Path::PlainRelay],
            Distance::NearByPeer => [Path::Connect; 3],
            Distance::Ms20 | Distance::Ms80 | Distance::Packets(_) | Distance::Fleet => {
                [Path::Direct, Path::TlsRelay, Path::PlainRelay]
            }
        }
    }

    /// What it finds.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = match self.work {
            Work::Bulk { direction, streams } => self.bulk_rows("bulk", direction, streams),
            Work::Copies { direction, streams } => self.bulk_rows("copies", direction, streams),
            Work::Ping { connections, bulk } => self.ping_rows(connections, bulk),
            Work::Scrapes { connections } => self.scrape_rows(connections),
            Work::NewConnections => {
                let beside = Path::PlainRelay;
                vec![Row::new("new_connections", "1/s", "per_second", beside)]
            }
            Work::FirstAnswer => vec![Row::new("first_answer", "us", "p50_us", Path::Connect)],
            Work::Neighbour { stalled } => {
                let speed = format!("neighbour_{stalled}");
                let share = format!("neighbour_share_{stalled}");
                vec![
                    Row::new(speed, "GiB/s", "gib_per_second", Path::TlsRelay),
                    Row::new(share, "of alone", "share", Path::TlsRelay),
                ]
            }
            Work::IdleStreams => memory_row("idle_stream", "kB", "kb_per_stream", Path::TlsRelay),
            Work::IdleTunnels => memory_row("idle_tunnel", "kB", "kb_per_tunnel", Path::Connect),
            Work::StalledReaders => {
                memory_row(&format!("stalled_{STALLED}"), "MiB", "mib", Path::Connect)
            }
            Work::SmallFrames => memory_row(
                &format!("one_byte_frames_{STALLED}"),
                "MiB",
                "mib",
                Path::Connect,
            ),
            Work::ConnectCost { destinations } => {
                let name = format!("connect_cost_{destinations}");
                vec![Row::new(name, "us", "p50_us", Path::InterceptEbpf)]
            }
            Work::Far(work) => work.rows(),
            Work::ScrapeAll => scrape_all_rows(),
            Work::Dns => vec![
                Row::new("dns_answers", "1/s", "per_second", Path::Redirector),
                Row::new("dns_p99", "us", "p99_us", Path::Redirector),
            ],
        };
        let suffix = self.distance.suffix();
        for row in &mut rows {
            row.name += &suffix;
        }
        rows
    }

    fn bulk_rows(&self, work: &str, direction: Direction, streams: usize) -> Vec<Row> {
        let [beside_bulk, beside_cpu, _] = self.moving_beside();
        let kind = format!("{}_{streams}", direction.name());
        let bulk = format!("{work}_{kind}");
        let cpu = if let Work::Copies { .. } = self.work {
            format!("cpu_{bulk}")
        } else {
            format!("cpu_{kind}")
        };
        vec![
            Row::new(bulk, "GiB/s", "gib_per_second", beside_bulk),
            Row::new(cpu, "CPU-s/GiB", "cpu_per_gib", beside_cpu),
        ]
    }

    fn ping_rows(&self, connections: usize, bulk: usize) -> Vec<Row> {
        let [.., beside] = self.moving_beside();
        let kind = if bulk == 0 {
            connections.to_string()
        } else {
            format!("{connections}_under_bulk_{bulk}")
        };
        vec![
            Row::new(format!("ping_p50_{kind}"), "us", "p50_us", beside),
            Row::new(format!("ping_p99_{kind}"), "us", "p99_us", beside),
        ]
    }

    fn scrape_rows(&self, connections: usize) -> Vec<Row> {
        let [beside, ..] = self.moving_beside();
        let name = format!("scrape_{connections}");
        let p99 = format!("scrape_p99_{connections}");
        vec![
            Row::new(name, "1/s", "per_second", beside),
            Row::new(p99, "us", "p99_us", beside),
        ]
    }
}

fn memory_row(kind: &str, unit: &'static str, figure: &'static str, beside: Path) -> Vec<Row> {
    vec![Row::new(format!("memory_{kind}"), unit, figure, beside)]
}

fn scrape_all_rows() -> Vec<Row> {
    let beside = Path::DirectNew;
    vec![
        Row::new("scrape_p50", "us", "p50_us", beside),
        Row::new("scrape_p99", "us", "p99_us", beside),
        Row::new("scrape_last", "us", "all_us", beside),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows: Vec<String> = all()
            .iter()
            .flat_map(Job::rows)
            .map(|row| row.name)
            .collect();
        assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
        for name in [
            "bulk_up_8",
            "bulk_down_64",
            "scrape_64",
            "keystroke_p99_up2m",
            "ping_p50_1",
            "ping_p99_64_under_bulk_4",
            "bulk_up_1_rtt20",
            "bulk_up_8_by_peer",
            "scrape_300k_kept_rtt80",
            "ping_p99_under_bulk_up2m",
            "ping_p99_late_under_bulk_up2m",
            "scrape_50k_new_rtt20",
            "bulk_up_8_loss0.1_rtt50",
            "ping_p99_16_loss1_rtt50",
        ] {
            assert!(
                rows.iter().any(|row| row == name),
                "{name} is not in {rows:?}"
            );
        }
    }

    #[test]
    fn a_name_chooses_the_jobs_that_find_it() {
        let count = |only: &str| chosen(&[only.to_owned()]).len();
        assert_eq!(
            count("cpu_up_8"),
            1,
            "the row of that name, not those over long links"
        );
        assert_eq!(count("far"), far::jobs().len());
        assert_eq!(count("scrape_300k_new_rtt80"), 1);
        assert_eq!(count("rtt20"), 20, "all whose names contain it");
        assert_eq!(count("nothing"), 0);
        assert_eq!(chosen(&[]).len(), jobs().len());
    }

    #[test]
    fn every_row_is_compared_with_a_path_it_is_measured_on() {
        assert!(all().iter().all(|job| {
            job.rows()
                .iter()
                .all(|row| job.paths(&[]).contains(&row.beside))
        }));
    }
}
