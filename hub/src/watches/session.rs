//! One client's watch, from its first event to its end. It is the body of the answer: when the
//! client goes, all of it goes.

mod output;
mod overlays;
mod received;
mod relist;
mod resume;

use std::time::Duration;

use bytes::Bytes;
use culvert_daemon::jittered;
use futures_util::stream;
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;
use tokio::time::Instant;

use self::output::Output;
use self::overlays::SentOverlays;
use self::received::OpenWatch;
use super::client::Client;
use super::difference::Versions;
use super::position::Position;
use super::retry::Retry;
use crate::budget::Charge;
use crate::cache::{Snapshot, WatchStart};
use crate::request::options::AskedVersion;
use crate::upstream::pool::AnswerBody;
use crate::upstream::watcher::LinkStatus;
use crate::upstream::{Body, BodyError};
use crate::wire::status::Status;
use crate::wire::{Bookmark, Event, TypeMeta};

/// How often a silent watch says how far it has come, as the API server does.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The shortest life that the API server gives to a watch without `timeoutSeconds`. The longest is
/// twice as long.
const MIN_LIFETIME: Duration = Duration::from_secs(1800);
/// A longer `timeoutSeconds` is cut to this.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// A watch that occupies fewer bytes is not counted.
const UNCOUNTED: usize = 8 << 10;
/// An end this early is still the one that the client asked for.
const END_TOLERANCE: Duration = Duration::from_secs(2);

/// The watch.
pub(super) struct Session {
    client: Client,
    state: State,
    position: Position,
    item_type: Option<TypeMeta>,
    /// All that the client has, if that is known: from a cut to the first event after it. Without
    /// local writes, which are in `overlays`.
    client_has: Option<Snapshot>,
    overlays: SentOverlays,
    /// Changes with each local write.
    local_writes: watch::Receiver<()>,
    output: Output,
    charge: Charge,
    link: watch::Receiver<LinkStatus>,
    /// When a client that asked for an end expects it.
    ends_at: Option<Instant>,
    started: Instant,
    /// When a watch ends that is silent then, if its client did not ask for an end.
    silent_until: Instant,
    retry: Retry,
    /// How often the API server has answered 404 since it was open.
    missing: u32,
    /// When the API server answered it last.
    opened: Instant,
    next_bookmark: Instant,
    /// How many restores of the cluster this watch knows of.
    restores: u64,
    /// Versions of the client's objects and of those of the next list.
    versions: Versions,
}

/// Where its next events come from.
enum State {
    /// The API server, and the memory gets a copy.
    Open(Box<OpenWatch>),
    /// The API server. They were not understood, and are passed on as they come, to the end.
    PassedOn(AnswerBody),
    /// Nothing comes until the link is back.
    Silent,
    /// A list: the API server has forgotten what happened since the client's last event.
    Forgotten,
    Ended,
}

impl Session {
    /// A watch that the API server has begun to answer.
    pub(super) fn answered(client: Client, body: AnswerBody) -> Self {
        let options = &client.read.options;
        let start = match options.resource_version {
            _ if options.send_initial_events => WatchStart::Streaming,
            AskedVersion::At(version) => WatchStart::At(version),
            AskedVersion::Any | AskedVersion::Newest => WatchStart::Anywhere,
        };
        let mut session = Self::new(client);
        session.assume_overlays();
        session.revert_overlays();
        session.follow(body, start);
        session
    }

    /// A watch that begins while there is no link.
    pub(super) fn from_memory(client: Client, known: Snapshot) -> Self {
        let mut session = Self::new(client);
        session.item_type = Some(known.item_type.clone());
        if session.position == Position::InitialEvents {
            session.overlays.set_all(&known);
            session.position = Position::At(known.head.resource_version);
            session.send_members(known);
        }
        session.begin_silence();
        session
    }

    fn new(client: Client) -> Self {
        let now = Instant::now();
        let hub = &client.hub;
        let lifetime = match client.read.options.timeout_seconds {
            Some(seconds) if seconds > 0 => Some(Duration::from_secs(seconds).min(MAX_LIFETIME)),
            Some(_) | None => None,
        };
        let filter = hub.filters.of(Some(&client.reader), &client.read);
        let restores = hub.memory.lock().cache.restores();
        Self {
            state: State::Silent,
            position: Position::of_request(&client.read.options),
            item_type: None,
            client_has: None,
            overlays: SentOverlays::default(),
            local_writes: hub.memory.local_writes(),
            output: Output::new(client.encoding(), filter),
            charge: hub.charge(&client.reader),
            link: hub.upstream.link.subscribe(client.proof.credential()),
            ends_at: lifetime.map(|lifetime| now + lifetime),
            started: now,
            silent_until: now + MIN_LIFETIME + jittered(MIN_LIFETIME),
            retry: Retry::new(),
            missing: 0,
            opened: now,
            next_bookmark: now + BOOKMARK_EVERY,
            restores,
            versions: Versions::OfOneHistory,
            client,
        }
    }

    /// The body of the answer.
    pub(super) fn into_body(self) -> Body {
        let events = stream::unfold(self, |mut session| async move {
            let next = Box::pin(session.next()).await?;
            Some((next.map(Frame::data), session))
        });
        StreamBody::new(events).boxed_unsync()
    }

    /// What the client gets next. `None`: the end.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            let next = self.output.next();
            self.count_bytes();
            if let Some(bytes) = next {
                return Some(Ok(bytes));
            }
            match &mut self.state {
                State::Ended => return None,
                State::PassedOn(body) => match body.frame().await? {
                    Ok(frame) => {
                        if let Ok(bytes) = frame.into_data() {
                            return Some(Ok(bytes));
                        }
                    }
                    Err(error) => return Some(Err(error.into())),
                },
                State::Open(watch) => {
                    let frame = tokio::select! {
                        frame = watch.body.frame() => Some(frame),
                        _ = self.link.wait_for(|link| !link.is_up()) => None,
                    };
                    match frame {
                        Some(Some(Ok(frame))) => self.receive(frame),
                        Some(None) if self.is_end_expected() => self.state = State::Ended,
                        Some(Some(Err(_)) | None) | None => self.record_loss(),
                    }
                }
                State::Silent => self.wait_and_resume().await,
                State::Forgotten => self.send_differences().await,
            }
        }
    }

    /// Counts what waits here for the client, or for the rest of an event.
    fn count_bytes(&mut self) {
        let mut bytes = self.output.bytes();
        if let State::Open(watch) = &self.state {
            bytes += watch.bytes();
        }
        self.charge.set(if bytes < UNCOUNTED { 0 } else { bytes });
    }

    /// Whether the client expects the end of its watch now. If the API server ends it earlier, it
    /// stops or restarts, which the client does not need to know.
    fn is_end_expected(&self) -> bool {
        let now = Instant::now();
        match self.ends_at {
            Some(end) => now + END_TOLERANCE >= end,
            None => now >= self.started + MIN_LIFETIME,
        }
    }

    /// Ends the watch with an error.
    fn end_with(&mut self, code: StatusCode, reason: &'static str, message: &str) {
        let status = Status {
            code: code.as_u16(),
            reason,
            message: message.to_owned(),
            retry_after_seconds: None,
            cause: None,
        };
        let encoding = self.client.encoding();
        self.output
            .push_unfiltered(status.event(encoding).frame(encoding));
        self.state = State::Ended;
    }

    /// Sends what exists to a client that asked for it with the watch.
    fn send_members(&mut self, known: Snapshot) {
        let version = known.head.resource_version;
        self.output.push_members(known);
        if self.client.read.options.send_initial_events {
            self.send_bookmark(version, Bookmark::InitialEventsEnd);
        }
    }

    fn send_bookmark(&mut self, version: u64, kind: Bookmark) {
        let wanted =
            kind == Bookmark::InitialEventsEnd || self.client.read.options.allow_watch_bookmarks;
        let encoding = self.client.encoding();
        if wanted && let Some(item_type) = self.item_type() {
            let event = Event::bookmark(encoding, &item_type, version, kind);
            self.output.push_unfiltered(event.frame(encoding));
        }
    }

    /// The type of the objects of this watch, or of the same list in memory.
    fn item_type(&self) -> Option<TypeMeta> {
        if self.item_type.is_some() {
            return self.item_type.clone();
        }
        Some(self.client.snapshot()?.item_type)
    }
}
