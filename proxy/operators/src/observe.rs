//! The control socket's `Observe`: connections of clients as they begin and end.

use std::collections::VecDeque;
use std::time::{Duration, UNIX_EPOCH};

use culvert_api::NodeName;
use culvert_api::proto::control as proto;
use futures_util::stream::{self, BoxStream, StreamExt, unfold};
use tonic::Status;

use culvert_proxy_streams::live::{StreamEvent, Streams};

/// Events that are read at once.
const BATCH: usize = 256;

/// How long it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// All that is kept has been sent.
    Now,
    /// The observer leaves.
    Forever,
}

/// Which events are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventChoice {
    All,
    /// Connections that ended with a reason.
    Failures,
}

impl EventChoice {
    fn includes(self, event: &proto::StreamEvent) -> bool {
        match self {
            Self::All => true,
            Self::Failures => !event.reason.is_empty(),
        }
    }
}

struct Observer {
    streams: Streams,
    until: Until,
    choice: EventChoice,
    cursor: u64,
    ready: VecDeque<proto::StreamEvent>,
}

/// The events that are kept, and with `follow` all that come.
pub(crate) fn observe(
    streams: Streams,
    request: proto::ObserveRequest,
) -> BoxStream<'static, Result<proto::StreamEvent, Status>> {
    let until = if request.follow {
        Until::Forever
    } else {
        Until::Now
    };
    let choice = if request.failures {
        EventChoice::Failures
    } else {
        EventChoice::All
    };
    let observer = Observer::new(streams, until, choice);
    if request.last > 0 && !request.follow {
        let last = observer.last(request.last as usize);
        return stream::iter(last).map(Ok).boxed();
    }
    unfold(observer, next).boxed()
}

/// The last connections that failed, of those that are kept.
pub(crate) fn last_failures(streams: Streams, count: usize) -> Vec<proto::StreamEvent> {
    let observer = Observer::new(streams, Until::Now, EventChoice::Failures);
    let mut failures: Vec<_> = observer.last(count).into();
    // Events that are missing.
    failures.retain(|event| event.lost == 0);
    failures
}

async fn next(mut observer: Observer) -> Option<(Result<proto::StreamEvent, Status>, Observer)> {
    loop {
        if let Some(event) = observer.ready.pop_front() {
            return Some((Ok(event), observer));
        }
        let has_read = observer.read();
        if observer.ready.is_empty() && has_read == 0 {
            match observer.until {
                Until::Now => return None,
                Until::Forever => observer.streams.recent().wait_for(observer.cursor).await,
            }
        }
    }
}

impl Observer {
    /// From the oldest event that is kept.
    fn new(streams: Streams, until: Until, choice: EventChoice) -> Self {
        Self {
            cursor: streams.recent().oldest(),
            until,
            choice,
            streams,
            ready: VecDeque::new(),
        }
    }

    /// The last events that are wanted, of those that are kept.
    fn last(mut self, count: usize) -> VecDeque<proto::StreamEvent> {
        while self.read() > 0 {
            let more = self.ready.len().saturating_sub(count);
            self.ready.drain(..more);
        }
        self.ready
    }

    /// Reads some events. Returns how many there were, wanted or not.
    fn read(&mut self) -> usize {
        let read = self.streams.recent().read(&mut self.cursor, BATCH);
        if read.lost > 0 {
            self.ready.push_back(proto::StreamEvent {
                lost: read.lost,
                ..proto::StreamEvent::default()
            });
        }
        let count = read.events.len();
        for event in read.events {
            let event = event_message(&event);
            if self.choice.includes(&event) {
                self.ready.push_back(event);
            }
        }
        count
    }
}

fn event_message(event: &StreamEvent) -> proto::StreamEvent {
    let stream = event.view();
    let node = stream.node.as_ref().map(NodeName::to_string);
    let at = event.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (outcome, reason) = match &event.end {
        Some(end) => (end.outcome, end.reason.clone().unwrap_or_default()),
        None => ("", String::new()),
    };
    proto::StreamEvent {
        lost: 0,
        unix_millis: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
        stream: stream.stream,
        frontend: stream.frontend.to_owned(),
        client: stream.client,
        destination: stream.original_dst,
        node: node.unwrap_or_default(),
        outcome: outcome.to_owned(),
        reason,
        duration_millis: in_millis(stream.age_seconds),
        bytes_to_backend: stream.bytes_to_backend,
        bytes_to_client: stream.bytes_to_client,
    }
}

fn in_millis(seconds: f64) -> u64 {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
