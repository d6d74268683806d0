//! The backend. The first byte of a client selects the service.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::inside;
use parking_lot::Mutex;

use super::moved::Moved;

/// Returns what it receives.
pub(super) const ECHO: u8 = b'E';
/// Reads everything.
pub(super) const SINK: u8 = b'U';
/// Sends endlessly.
pub(super) const SOURCE: u8 = b'D';
/// Sends one byte at a time, endlessly.
pub(super) const DRIP: u8 = b'1';
/// Answers each request with as many bytes as the request's first eight say.
pub(super) const ANSWER: u8 = b'A';
/// Sends as many bytes as the next eight say.
pub(super) const FETCH: u8 = b'F';
/// Reads as many bytes as the next eight say, and then sends one.
pub(super) const STORE: u8 = b'S';
/// Bytes of a request for an answer.
pub(super) const REQUEST: usize = 500;
/// Pause between two bytes of a drip: long enough that no program on the path joins them.
const DRIP_PAUSE: Duration = Duration::from_millis(2);
/// Size of one read or write of bulk.
pub(super) const PIECE: usize = 256 << 10;
/// Stack size: there are thousands of threads, and their calls are shallow.
const STACK: usize = 128 << 10;

/// The backend of this process. Clones share it.
#[derive(Clone)]
pub(super) struct Backend(Arc<Shared>);

struct Shared {
    listener: TcpListener,
    waiting: AtomicUsize,
    connections: Mutex<HashMap<ThreadId, TcpStream>>,
    received: Moved,
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("listen on {address}"))
}

impl Backend {
    /// Listens in the network namespace `netns`, or in that of this process.
    pub(super) fn start(address: SocketAddr, netns: Option<&Path>) -> Result<Self> {
        let listener = match netns {
            Some(netns) => inside::run(netns, || bind(address))?,
            None => bind(address)?,
        };
        let backend = Self(Arc::new(Shared {
            listener,
            waiting: AtomicUsize::default(),
            connections: Mutex::default(),
            received: Moved::default(),
        }));
        backend.add_thread()?;
        Ok(backend)
    }

    /// The number of connections that are being served.
    pub(super) fn connections(&self) -> usize {
        self.connected(|connections| connections.len())
    }

    /// Ends the remaining connections of a job.
    pub(super) fn end_all(&self) {
        // Some may have ended by themselves.
        self.connected(|connections| {
            connections
                .values()
                .for_each(|client| drop(client.shutdown(Shutdown::Both)))
        });
    }

    fn connected<T>(&self, change: impl FnOnce(&mut HashMap<ThreadId, TcpStream>) -> T) -> T {
        change(&mut self.0.connections.lock())
    }

    /// The bytes that sinks received.
    pub(super) fn received(&self) -> &Moved {
        &self.0.received
    }

    /// Threads accept in turn, and stay for the next connection: the start of a thread would add to
    /// the measured cost of a new connection.
    fn add_thread(&self) -> io::Result<()> {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        let backend = self.clone();
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || backend.serve_in_turn())?;
        Ok(())
    }

    fn serve_in_turn(&self) {
        loop {
            let accepted = self.0.listener.accept();
            if self.0.waiting.fetch_sub(1, Ordering::Relaxed) == 1
                && let Err(error) = self.add_thread()
            {
                eprintln!("backend: start a thread: {error}");
            }
            let served = accepted.and_then(|(client, _)| self.serve(client));
            // Clients may leave at any point when a job is over.
            served.ok();
            self.connected(|connections| connections.remove(&std::thread::current().id()));
            self.0.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let handle = client.try_clone()?;
        self.connected(|connections| connections.insert(std::thread::current().id(), handle));
        let mut wish = [0];
        client.read_exact(&mut wish)?;
        match wish[0] {
            ECHO => echo(&mut client),
            SINK => self.sink(&mut client),
            SOURCE => source(&mut client),
            DRIP => drip(&mut client),
            ANSWER => answer(&mut client),
            FETCH => fetch(&mut client),
            STORE => store(&mut client),
            other => Err(io::Error::other(format!("unknown wish {other}"))),
        }
    }

    fn sink(&self, client: &mut TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        let mut counter = self.0.received.counter();
        loop {
            match client.read(&mut buffer)? {
                0 => return Ok(()),
                count => counter.add(count),
            }
        }
    }
}

fn echo(client: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        match client.read(&mut buffer)? {
            0 => return Ok(()),
            count => client.write_all(&buffer[..count])?,
        }
    }
}

fn source(client: &mut TcpStream) -> io::Result<()> {
    let buffer = vec![7; PIECE];
    loop {
        client.write_all(&buffer)?;
    }
}

fn fetch(client: &mut TcpStream) -> io::Result<()> {
    let mut left = length(client)?;
    let buffer = vec![7; PIECE];
    while left > 0 {
        let count = left.min(PIECE);
        client.write_all(&buffer[..count])?;
        left -= count;
    }
    Ok(())
}

fn store(client: &mut TcpStream) -> io::Result<()> {
    let mut left = length(client)?;
    let mut buffer = vec![0; PIECE];
    while left > 0 {
        match client.read(&mut buffer)? {
            0 => return Ok(()),
            count => left = left.saturating_sub(count),
        }
    }
    client.write_all(&[7])
}

fn length(client: &mut TcpStream) -> io::Result<usize> {
    let mut length = [0; 8];
    client.read_exact(&mut length)?;
    usize::try_from(u64::from_be_bytes(length)).map_err(io::Error::other)
}

fn drip(client: &mut TcpStream) -> io::Result<()> {
    loop {
        client.write_all(&[7])?;
        std::thread::sleep(DRIP_PAUSE);
    }
}

fn answer(client: &mut TcpStream) -> io::Result<()> {
    let mut request = [0; REQUEST];
    loop {
        client.read_exact(&mut request)?;
        let bytes = u64::from_be_bytes(std::array::from_fn(|index| request[index]));
        io::copy(&mut io::repeat(7).take(bytes), client)?;
    }
}
