//! An ordinary DNS server on the internet. It has one address for every name except [`NOWHERE`].

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_lab::dns;
use culvert_lab::inside;
use parking_lot::Mutex;

/// The address in its answers.
pub(super) const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);

/// The name that does not exist.
pub(super) const NOWHERE: &str = "nowhere.example";

/// Interval at which it checks whether to end.
const TURN: Duration = Duration::from_millis(100);

/// The server, running. Dropping it ends it.
pub(super) struct Upstream {
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    names: Mutex<BTreeSet<String>>,
    has_ended: AtomicBool,
}

impl Upstream {
    pub(super) fn start(netns: &Path, address: Ipv4Addr) -> Result<Self> {
        let socket = inside::run(netns, || {
            UdpSocket::bind((address, 53)).context("bind the upstream server")
        })?;
        socket.set_read_timeout(Some(TURN))?;
        let shared = Arc::new(Shared::default());
        let server = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(&socket, &shared)
        });
        Ok(Self {
            shared,
            server: Some(server),
        })
    }

    /// The queried names with this ending.
    pub(super) fn asked(&self, ending: &str) -> Vec<String> {
        let names = self.shared.names.lock();
        names
            .iter()
            .filter(|name| name.ends_with(ending))
            .cloned()
            .collect()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            server.join().ok();
        }
    }
}

fn serve(socket: &UdpSocket, shared: &Shared) {
    let mut packet = [0; 1500];
    while !shared.has_ended.load(Ordering::Relaxed) {
        let Ok((length, client)) = socket.recv_from(&mut packet) else {
            continue;
        };
        let question = &packet[..length];
        let Some(name) = name(question) else { continue };
        let Some(answer) = answer(&name, question) else {
            continue;
        };
        shared.names.lock().insert(name);
        // The client may be gone.
        socket.send_to(&answer, client).ok();
    }
}

/// The name in a question, in lower case.
fn name(question: &[u8]) -> Option<String> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        if length == 0 {
            return Some(labels.join("."));
        }
        let label = question.get(at + 1..at + 1 + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += 1 + length;
    }
}

/// One record for a question of type A; no data for all others.
fn answer(name: &str, question: &[u8]) -> Option<Vec<u8>> {
    let end = dns::after_name(question, 12)? + 4;
    let mut packet = question.get(..end)?.to_vec();
    let exists = name != NOWHERE;
    let is_a = exists && packet[end - 4..end - 2] == dns::A.to_be_bytes();
    // A response with recursion available, one question and the given number of answers.
    packet[2] |= 0x80;
    packet[3] = if exists { 0x80 } else { 0x83 };
    packet[4..12].copy_from_slice(&[0, 1, 0, is_a.into(), 0, 0, 0, 0]);
    if is_a {
        // The name of the question, type A, class IN, TTL of a minute, four bytes.
        packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        packet.extend(ADDRESS.octets());
    }
    Some(packet)
}
