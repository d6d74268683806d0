//! Streams that transfer as much as they can.

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::backend::{Backend, DRIP, PIECE, SINK, SOURCE};
use super::endpoint::{Endpoint, Stream};
use super::moved::Moved;
use super::observed::{processor_time, resident};
use super::{Direction, Figures, Sent};

const GIB: f64 = (1 << 30) as f64;
/// Time until each stream has moved its first bytes: eight streams in two connections that lose one
/// packet of a hundred take some 15 s.
const STARTED: Duration = Duration::from_secs(60);
/// Time for windows and buffers to grow, after all streams have started.
const WARM_UP: Duration = Duration::from_millis(500);
/// Time until all windows on the path are full of bulk.
const FILLED: Duration = Duration::from_secs(2);
/// Time for two thousand bytes from each backend that sends one at a time; it would take hours to
/// fill windows with them.
const DRIPPED: Duration = Duration::from_secs(4);

/// When bulk is measured.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    /// After all streams have started: their windows and buffers grow, or they move to other tunnels.
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

impl Timing {
    pub(super) fn of_seconds(warm_up: f64, measured: f64) -> Self {
        Self {
            warm_up: Duration::from_secs_f64(warm_up),
            measured: Duration::from_secs_f64(measured),
        }
    }
}

/// Streams that continue until this is dropped.
pub(super) struct Bulk {
    handles: Vec<Stream>,
    threads: Vec<JoinHandle<()>>,
    down: Arc<Moved>,
}

impl Bulk {
    pub(super) fn start(
        endpoint: &Endpoint,
        directions: impl IntoIterator<Item = Direction>,
    ) -> Result<Self> {
        let mut bulk = Self {
            handles: Vec::new(),
            threads: Vec::new(),
            down: Arc::default(),
        };
        for direction in directions {
            let mut stream = endpoint.connect()?;
            bulk.handles.push(stream.handle()?);
            let down = bulk.down.clone();
            // They end with an error when the handle ends them.
            bulk.threads
                .push(std::thread::spawn(move || match direction {
                    Direction::Up => drop(send(&mut stream)),
                    Direction::Down => drop(receive(&mut stream, &down)),
                }));
        }
        Ok(bulk)
    }

    /// Waits until all streams are `under_way`: over a long or busy link, some start seconds after
    /// others.
    pub(super) fn settle(&self, under_way: impl Fn() -> usize, warm_up: Duration) -> Result<()> {
        let started = Instant::now();
        let streams = self.threads.len();
        while under_way() < streams {
            self.check()?;
            ensure!(
                started.elapsed() < STARTED,
                "only {} of {streams} bulk streams are under way",
                under_way()
            );
            sleep(Duration::from_millis(5));
        }
        sleep(warm_up);
        Ok(())
    }

    /// What the streams down have received.
    pub(super) fn received(&self) -> &Moved {
        &self.down
    }

    /// Fails if a stream has ended early.
    pub(super) fn check(&self) -> Result<()> {
        let ended = self
            .threads
            .iter()
            .filter(|thread| thread.is_finished())
            .count();
        ensure!(
            ended == 0,
            "{ended} of {} bulk streams broke",
            self.threads.len()
        );
        Ok(())
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.handles.iter().for_each(Stream::end);
        for thread in self.threads.drain(..) {
            // A panic has been printed already.
            thread.join().ok();
        }
    }
}

fn send(stream: &mut Stream) -> std::io::Result<()> {
    let buffer = vec![7; PIECE];
    stream.write_all(&[SINK])?;
    loop {
        stream.write_all(&buffer)?;
    }
}

fn receive(stream: &mut Stream, down: &Moved) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut counter = down.counter();
    stream.write_all(&[SOURCE])?;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => counter.add(count),
        }
    }
}

pub(super) fn run(
    endpoint: &Endpoint,
    direction: Direction,
    streams: usize,
    timing: Timing,
    pids: &[u32],
    backend: &Backend,
) -> Result<Figures> {
    let under_way_before = backend.received().under_way();
    let bulk = Bulk::start(endpoint, std::iter::repeat_n(direction, streams))?;
    bulk.settle(
        || bulk.down.under_way() + backend.received().under_way() - under_way_before,
        timing.warm_up,
    )?;
    let started = Instant::now();
    let before = bulk.down.bytes() + backend.received().bytes();
    let cpu_before = processor_time(pids)?;
    sleep(timing.measured);
    let elapsed = started.elapsed();
    let after = bulk.down.bytes() + backend.received().bytes();
    let moved = (after - before) as f64;
    let cpu = processor_time(pids)?.saturating_sub(cpu_before);
    bulk.check()?;
    ensure!(moved > 0.0, "nothing moved");
    let mut figures = rates(moved / elapsed.as_secs_f64());
    if !pids.is_empty() {
        figures.push(("cpu_per_gib", cpu.as_secs_f64() / (moved / GIB)));
    }
    Ok(figures)
}

/// The same rate in the units of near and of far rows.
fn rates(bytes_per_second: f64) -> Figures {
    vec![
        ("gib_per_second", bytes_per_second / GIB),
        ("mbit_per_second", bytes_per_second * 8.0 / 1e6),
    ]
}

/// Measures one stream down, alone and then beside connections whose data is not read.
pub(super) fn neighbour(
    endpoint: &Endpoint,
    stalled: usize,
    seconds: f64,
    backend: &Backend,
) -> Result<Figures> {
    let timing = Timing {
        warm_up: WARM_UP,
        measured: Duration::from_secs_f64(seconds),
    };
    let alone = rate(run(endpoint, Direction::Down, 1, timing, &[], backend)?);
    let readers = stall(endpoint, Sent::Bulk, stalled)?;
    let beside = rate(run(endpoint, Direction::Down, 1, timing, &[], backend)?);
    readers.iter().for_each(Stream::end);
    Ok(vec![("gib_per_second", beside), ("share", beside / alone)])
}

/// Measures the memory that processes hold for connections whose data is not read.
pub(super) fn stalled(
    endpoint: &Endpoint,
    sent: Sent,
    stalled: usize,
    pids: &[u32],
) -> Result<Figures> {
    let before = resident(pids)?;
    let readers = stall(endpoint, sent, stalled)?;
    let taken = resident(pids)?.saturating_sub(before) as f64;
    readers.iter().for_each(Stream::end);
    Ok(vec![("mib", taken / (1 << 20) as f64)])
}

/// Opens connections that do not read, and waits until their buffers have filled.
fn stall(endpoint: &Endpoint, sent: Sent, count: usize) -> Result<Vec<Stream>> {
    let (wish, time) = match sent {
        Sent::Bulk => (SOURCE, FILLED),
        Sent::Bytes => (DRIP, DRIPPED),
    };
    let mut readers = Vec::new();
    for _ in 0..count {
        let mut reader = endpoint.connect()?;
        reader.write_all(&[wish])?;
        readers.push(reader);
    }
    sleep(time);
    Ok(readers)
}

fn rate(figures: Figures) -> f64 {
    figures[0].1
}
