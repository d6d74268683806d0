//! The connections of clients that are under way, with the time since their last bytes, and which of
//! them wait for their backend.

use std::time::{Duration, Instant};

use culvert_api::NodeName;
use culvert_daemon::Idle;
use culvert_proxy_streams::live::Streams;
use culvert_proxy_streams::view::StreamView;

/// All of them. Clones share them.
#[derive(Clone)]
pub struct StreamList {
    streams: Streams,
    idle: Idle<u64>,
}

/// A connection, with the time since the last byte in each direction, to within a second.
#[derive(Debug)]
pub(crate) struct ListedStream {
    pub(crate) stream: StreamView,
    pub(crate) idle_to_backend: Duration,
    pub(crate) idle_to_client: Duration,
}

impl StreamList {
    /// The caller must let `idle` observe the streams.
    pub fn new(streams: Streams, idle: Idle<u64>) -> Self {
        Self { streams, idle }
    }

    /// The connections themselves.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let [clients, _] = self.streams.totals();
        clients
    }

    /// Each of them, oldest first.
    pub(crate) fn all(&self) -> Vec<ListedStream> {
        let now = Instant::now();
        self.idle.look(self.streams.counts(), now);
        let mut all = Vec::new();
        for stream in self.streams.views() {
            let [idle_to_backend, idle_to_client] = self.idle.of(&stream.stream, now);
            all.push(ListedStream {
                stream,
                idle_to_backend,
                idle_to_client,
            });
        }
        all
    }

    /// How long each client of this port of the node waits for it, the longest wait first.
    pub(crate) fn waits_for(&self, node: &NodeName, on: u16) -> Vec<Duration> {
        let mut waits = Vec::new();
        for listed in self.all() {
            let is_its = listed.stream.node.as_ref() == Some(node)
                && port(&listed.stream.original_dst) == Some(on);
            if let Some(wait) = listed.waits()
                && is_its
            {
                waits.push(wait);
            }
        }
        waits.sort_unstable_by(|a, b| b.cmp(a));
        waits
    }
}

impl ListedStream {
    /// The time since the last byte in either direction.
    pub(crate) fn idle(&self) -> Duration {
        self.idle_to_backend.min(self.idle_to_client)
    }

    /// How long the backend has had the last bytes, and has not answered. `None`: it has answered,
    /// or was not asked.
    pub(crate) fn waits(&self) -> Option<Duration> {
        if self.stream.answer_is_due {
            Some(self.idle_to_backend)
        } else {
            None
        }
    }
}

fn port(destination: &str) -> Option<u16> {
    let (_, port) = destination.rsplit_once(':')?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use culvert_proxy_core::directory::Destination;
    use culvert_proxy_core::metrics::Metrics;
    use culvert_proxy_streams::live::Frontend;

    use super::*;

    #[test]
    fn a_client_waits_from_its_last_byte_until_the_first_of_the_answer() {
        let streams = Streams::for_tests(Metrics::default());
        let list = StreamList::new(streams.clone(), Idle::default());
        let node = "edge-1".parse().unwrap();
        let destination: Destination = "10.0.3.7:9100"
            .parse::<culvert_api::HostPort>()
            .unwrap()
            .into();
        let record = streams.start_record(1, Frontend::Ebpf, "10.0.0.1:1".into(), destination);
        record.set_node(&node);
        assert_eq!(list.waits_for(&node, 9100).len(), 0, "nobody has asked");
        record.transferred().into_tunnel.add(&[b'a'; 100]);
        assert_eq!(list.waits_for(&node, 9100).len(), 1);
        assert_eq!(list.waits_for(&node, 10250).len(), 0, "another port");
        record.transferred().out_of_tunnel.add(&[b'a'; 100]);
        assert_eq!(list.waits_for(&node, 9100).len(), 0, "it has answered");
    }
}
