//! One client's watch, from its first event to its end. It is the body of the answer: when the
//! client goes, all of it goes.

mod overlays;
mod relist;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use culvert_daemon::jittered;
use futures_util::stream;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use self::overlays::ToldOverlays;
use super::difference::Versions;
use super::position::{Position, resumed};
use super::retry::Retry;
use crate::answers::local;
use crate::budget::Charge;
use crate::cache::{Applied, Cursor, Identity, Snapshot, WatchCopy, WatchStart};
use crate::filters::Filter;
use crate::hub::Hub;
use crate::identity::Proof;
use crate::metrics::{GAP, Splice};
use crate::reads::{Read, RepeatableRead};
use crate::relay::is_encoded_as;
use crate::request::options::AskedVersion;
use crate::upstream::pool::{AnswerBody, RequestKind};
use crate::upstream::watcher::LinkStatus;
use crate::upstream::{Body, BodyError};
use crate::wire::split::EventSplitter;
use crate::wire::status::Status;
use crate::wire::{Bookmark, Encoding, Event, EventKind, TypeMeta};

/// How often a silent watch says how far it has come, as the API server does.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The shortest life that the API server gives to a watch without `timeoutSeconds`. The longest is
/// twice as long.
const LEAST_LIFE: Duration = Duration::from_secs(1800);
/// A watch that holds less counts as nothing.
const SMALL: usize = 32 << 10;
/// What the buffer of an event keeps between two of them.
const KEPT_CAPACITY: usize = 4 << 10;
/// An end this early is still the one that the client asked for.
const END_TOLERANCE: Duration = Duration::from_secs(2);
/// After a cut, all watches of a node are opened again within this time, its pods first.
const NODE_SPREAD: Duration = Duration::from_secs(10);
/// Those of others, so that many nodes do not all ask at once.
const OTHERS_SPREAD: Duration = Duration::from_secs(30);

/// Who watches what.
pub(crate) struct Client {
    pub(crate) hub: Arc<Hub>,
    pub(crate) proof: Proof,
    pub(crate) reader: Identity,
    pub(crate) read: Read,
    /// To ask again.
    pub(crate) again: RepeatableRead,
}

impl Client {
    fn encoding(&self) -> Encoding {
        self.read.encoding()
    }

    /// How long to wait after a cut.
    fn spread(&self) -> Duration {
        let resource = &self.read.scope.representation.resource;
        match self.reader {
            Identity::Node if resource.group.is_empty() && resource.resource == "pods" => {
                Duration::ZERO
            }
            Identity::Node => NODE_SPREAD,
            Identity::ServiceAccount { .. } | Identity::User(_) => OTHERS_SPREAD,
        }
    }
}

/// A watch of the API server.
struct Live {
    body: AnswerBody,
    splitter: EventSplitter,
    /// The beginning of an event: its client gets whole events only, so that another connection
    /// can go on after any of them.
    begun: Vec<u8>,
    copy: WatchCopy,
}

enum State {
    Live(Box<Live>),
    /// The events were not understood: they are passed on as they come, to the end.
    Raw(AnswerBody),
    /// Nothing comes until the link is back.
    Silent,
    /// The API server has forgotten what happened since the client's last event.
    Forgotten,
    Ended,
}

/// What a client is to get.
enum Outgoing {
    Bytes(Bytes),
    /// An event for each object, made when its turn comes.
    Members(Box<Snapshot>, Cursor),
}

/// The watch.
pub(crate) struct Session {
    client: Client,
    state: State,
    position: Position,
    item_type: Option<TypeMeta>,
    /// All that the client has, if that is known: from a cut to the first event after it. Without
    /// local writes, which are in `overlays`.
    had: Option<Snapshot>,
    overlays: ToldOverlays,
    local_writes: watch::Receiver<()>,
    /// What the client is to get next.
    out: VecDeque<Outgoing>,
    /// Bytes of `out`.
    out_bytes: usize,
    charge: Charge,
    /// What its client sees otherwise than the API server says it.
    filter: Option<Filter>,
    link: watch::Receiver<LinkStatus>,
    /// When a client that asked for an end expects it.
    ends_at: Option<Instant>,
    started: Instant,
    /// When a watch ends that is silent then, if its client did not ask for an end.
    silent_until: Instant,
    retry: Retry,
    /// When the API server answered it last.
    live_since: Instant,
    next_bookmark: Instant,
    /// Restores of the cluster that this watch knows of.
    restores: u64,
    /// Of what the client has and what it is to be told.
    versions: Versions,
}

impl Session {
    /// A watch that the API server has begun to answer.
    pub(crate) fn passed_on(client: Client, body: AnswerBody) -> Self {
        let options = &client.read.options;
        let start = match options.resource_version {
            _ if options.send_initial_events => WatchStart::Streaming,
            AskedVersion::At(version) => WatchStart::At(version),
            AskedVersion::Any | AskedVersion::Newest => WatchStart::Anywhere,
        };
        let position = Position::of_request(options);
        let mut session = Self::new(client, position);
        session.suppose_overlays();
        session.take_overlays_back();
        session.go_live(body, start);
        session
    }

    /// A watch that begins while there is no link.
    pub(crate) fn from_memory(client: Client, known: Snapshot) -> Self {
        let version = known.head.resource_version;
        let position = Position::of_request(&client.read.options);
        let told = position == Position::InitialEvents;
        let mut session = Self::new(client, position);
        session.item_type = Some(known.item_type.clone());
        if told {
            session.overlays.note_all(&known);
            session.tell_members(known);
            session.position = Position::At(version);
        }
        session.fall_silent();
        session
    }

    fn new(client: Client, position: Position) -> Self {
        let now = Instant::now();
        let asked = client.read.options.timeout_seconds;
        let asked = asked.filter(|seconds| *seconds > 0);
        let restores = client.hub.memory.lock().cache.restores();
        Self {
            state: State::Silent,
            position,
            item_type: None,
            had: None,
            overlays: ToldOverlays::default(),
            local_writes: client.hub.memory.local_writes(),
            out: VecDeque::new(),
            out_bytes: 0,
            charge: client.hub.charge(&client.reader),
            filter: client.hub.filters.of(Some(&client.reader), &client.read),
            link: client
                .hub
                .upstream
                .link
                .subscribe(client.proof.credential()),
            ends_at: asked.map(|seconds| now + Duration::from_secs(seconds.min(24 * 3600))),
            started: now,
            silent_until: now + LEAST_LIFE + jittered(LEAST_LIFE),
            retry: Retry::new(),
            live_since: now,
            next_bookmark: now + BOOKMARK_EVERY,
            restores,
            versions: Versions::OfOneHistory,
            client,
        }
    }

    /// The body of the answer.
    pub(crate) fn into_body(self) -> Body {
        let events = stream::unfold(self, |mut session| async move {
            let next = Box::pin(session.next()).await?;
            Some((next.map(Frame::data), session))
        });
        StreamBody::new(events).boxed_unsync()
    }

    /// What the client gets next. `None`: the end.
    async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            if let Some(bytes) = self.next_outgoing() {
                return Some(Ok(bytes));
            }
            self.count_bytes();
            match &mut self.state {
                State::Ended => return None,
                State::Raw(body) => match body.frame().await? {
                    Ok(frame) => {
                        if let Ok(bytes) = frame.into_data() {
                            return Some(Ok(bytes));
                        }
                    }
                    Err(error) => return Some(Err(error.into())),
                },
                State::Live(live) => {
                    let frame = tokio::select! {
                        frame = live.body.frame() => Some(frame),
                        _ = self.link.wait_for(|link| !link.is_up()) => None,
                    };
                    match frame {
                        Some(Some(Ok(frame))) => self.receive(frame),
                        Some(None) => self.upstream_ended(),
                        Some(Some(Err(_))) | None => self.lost(),
                    }
                }
                State::Silent => self.wait_and_resume().await,
                State::Forgotten => self.tell_differences().await,
            }
        }
    }

    fn next_outgoing(&mut self) -> Option<Bytes> {
        while let Some(outgoing) = self.out.front_mut() {
            let event = match outgoing {
                Outgoing::Bytes(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.out.pop_front();
                    self.out_bytes -= bytes.len();
                    self.count_bytes();
                    return Some(bytes);
                }
                Outgoing::Members(known, cursor) => {
                    let item_type = &known.item_type;
                    known.next_item(cursor).map(|member| Event {
                        kind: EventKind::Added,
                        type_meta: item_type.clone(),
                        object: member.object(),
                    })
                }
            };
            match event {
                Some(event) => return Some(self.filtered(event.frame(self.client.encoding()))),
                None => drop(self.out.pop_front()),
            }
        }
        None
    }

    /// Counts what waits here for the client, or for the rest of an event.
    fn count_bytes(&mut self) {
        let mut bytes = self.out_bytes;
        if let State::Live(live) = &self.state {
            // The splitter has the begun event too.
            bytes += 2 * live.begun.capacity() + live.copy.bytes();
        }
        self.charge.set(if bytes < SMALL { 0 } else { bytes });
    }

    fn go_live(&mut self, body: AnswerBody, start: WatchStart) {
        self.live_since = Instant::now();
        let memory = &self.client.hub.memory;
        let copy = memory
            .lock()
            .cache
            .start_watch(&self.client.read.scope, start);
        self.state = State::Live(Box::new(Live {
            body,
            splitter: EventSplitter::new(self.client.encoding(), self.client.read.shape()),
            begun: Vec::new(),
            copy,
        }));
    }

    /// Takes bytes of the API server: whole events go to the client and to the memory.
    fn receive(&mut self, frame: Frame<Bytes>) {
        let Ok(bytes) = frame.into_data() else {
            return;
        };
        let mut rest = &bytes[..];
        while let State::Live(live) = &mut self.state {
            let before = rest;
            match live.splitter.next_event(&mut rest) {
                Ok(Some(event)) => {
                    // Readers by lines wait for the end of the line.
                    rest = rest.strip_prefix(b"\n").unwrap_or(rest);
                    live.begun
                        .extend_from_slice(&before[..before.len() - rest.len()]);
                    // A copy without the capacity that the buffer has grown by: it may wait for long.
                    let whole = Bytes::copy_from_slice(&live.begun);
                    live.begun.clear();
                    live.begun.shrink_to(KEPT_CAPACITY);
                    self.take_event(event, whole);
                }
                Ok(None) => {
                    live.begun.extend_from_slice(before);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a watch was not understood, and is passed on as it is");
                    self.pass_on_raw(before, error.reason());
                    return;
                }
            }
        }
    }

    fn take_event(&mut self, event: Event, bytes: Bytes) {
        const GONE: EventKind = EventKind::Error { code: 410 };
        if event.kind == GONE && self.had.is_some() {
            self.state = State::Forgotten;
            return;
        }
        self.had = None;
        let client = &self.client;
        if let State::Live(live) = &mut self.state {
            let now = client.hub.memory.now();
            let cache = &mut client.hub.memory.lock().cache;
            let applied = cache.apply(&mut live.copy, &event, &client.reader, now);
            if applied == Applied::Behind {
                client.hub.metrics.copy_is_behind(GAP);
            }
        }
        self.position = self.position.after(&event);
        if matches!(event.kind, EventKind::Error { .. }) {
            self.state = State::Ended;
        } else {
            self.item_type = Some(event.type_meta);
        }
        self.send(bytes);
    }

    /// Appends an event to what the client is to get.
    fn send(&mut self, event: Bytes) {
        let event = self.filtered(event);
        self.send_as_is(event);
    }

    fn send_as_is(&mut self, event: Bytes) {
        self.out_bytes += event.len();
        self.out.push_back(Outgoing::Bytes(event));
    }

    fn filtered(&self, event: Bytes) -> Bytes {
        match &self.filter {
            Some(filter) => filter.event(event),
            None => event,
        }
    }

    fn pass_on_raw(&mut self, rest: &[u8], reason: &'static str) {
        let state = std::mem::replace(&mut self.state, State::Ended);
        if let State::Live(mut live) = state {
            live.begun.extend_from_slice(rest);
            self.state = State::Raw(live.body);
            self.send_as_is(live.begun.into());
            if let Some(filter) = &self.filter {
                filter.failed();
            }
            let hub = &self.client.hub;
            hub.metrics.copy_is_behind(reason);
            hub.memory.lock().cache.mark_behind(&self.client.read.scope);
        }
    }

    /// The API server ended the watch. At the time that the client knows it is the end; earlier
    /// the API server stops or restarts, which the client does not need to know.
    fn upstream_ended(&mut self) {
        let now = Instant::now();
        let expected = match self.ends_at {
            Some(end) => now + END_TOLERANCE >= end,
            None => now >= self.started + LEAST_LIFE,
        };
        if expected {
            self.state = State::Ended;
        } else {
            self.lost();
        }
    }

    fn lost(&mut self) {
        self.retry.lived(self.live_since.elapsed());
        self.state = State::Silent;
        self.fall_silent();
    }

    fn fall_silent(&mut self) {
        self.note_what_client_has();
        self.local_writes.mark_changed();
    }

    /// The set is what the client has if both have come to the same resource version.
    fn note_what_client_has(&mut self) {
        let Client {
            hub, reader, read, ..
        } = &self.client;
        if self.had.is_none() {
            let known = local::snapshot(&hub.memory, reader, read);
            self.had = known
                .filter(|known| self.position == Position::At(known.head.resource_version))
                .map(Snapshot::without_overlays);
        }
    }

    /// While nothing comes: local writes and bookmarks, until the watch is open again or its time is
    /// over.
    async fn wait_and_resume(&mut self) {
        let Position::At(version) = self.position else {
            // The client has a part of what exists. It starts again.
            self.state = State::Ended;
            return;
        };
        let mut link = self.link.clone();
        let was_up = link.borrow().is_up();
        let pause = was_up.then(|| self.retry.pause());
        let spread = jittered(self.client.spread());
        let due = async move {
            if let Some(pause) = pause {
                sleep(pause).await;
            }
            // Its sender lives as long as the client's hub.
            link.wait_for(LinkStatus::is_up).await.ok();
            if !was_up {
                sleep(spread).await;
            }
        };
        let over = sleep_until(self.ends_at.unwrap_or(self.silent_until));
        tokio::pin!(due, over);
        loop {
            tokio::select! {
                () = &mut due => break,
                () = &mut over => {
                    self.state = State::Ended;
                    return;
                }
                // Its sender lives as long as the client's hub.
                Ok(()) = self.local_writes.changed() => {
                    self.tell_overlays(version);
                    if !self.out.is_empty() {
                        return;
                    }
                }
                () = sleep_until(self.next_bookmark) => {
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    self.tell_bookmark(version, Bookmark::Progress);
                    if !self.out.is_empty() {
                        return;
                    }
                }
            }
        }
        self.resume(version).await;
    }

    async fn resume(&mut self, version: u64) {
        let rest = self
            .ends_at
            .map(|end| end.saturating_duration_since(Instant::now()));
        let client = &self.client;
        let uri = resumed(&client.again.uri, version, rest);
        let request = client.again.request(uri);
        let hub = client.hub.clone();
        let credential = client.proof.credential();
        let turn = hub.turns.wait(credential).await;
        let sent = hub.upstream.send(credential, RequestKind::Long, request);
        let sent = sent.await;
        drop(turn);
        match sent {
            Ok(_) if self.is_of_before_restore() => {
                // What the client has is of another history: the API server would be silent.
                self.take_overlays_back();
                self.versions = Versions::OfTwoHistories;
                self.state = State::Forgotten;
            }
            Ok(answer) => self.resumed_with(answer, version),
            Err(error) => {
                tracing::debug!(error = culvert_daemon::chain(&error), "open a watch again");
            }
        }
    }

    fn is_of_before_restore(&mut self) -> bool {
        let restores = self.client.hub.memory.lock().cache.restores();
        std::mem::replace(&mut self.restores, restores) != restores
    }

    fn resumed_with(&mut self, answer: Response<AnswerBody>, version: u64) {
        let status = answer.status();
        let client = &self.client;
        let metrics = client.hub.metrics.clone();
        client.hub.learn(&client.proof, status);
        client
            .hub
            .record_verdict(&client.reader, &client.read, status);
        match status {
            StatusCode::OK if is_encoded_as(answer.headers(), client.encoding()) => {
                metrics.spliced(Splice::Resumed);
                self.take_overlays_back();
                self.go_live(answer.into_body(), WatchStart::At(version));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                metrics.spliced(Splice::Refused);
                self.end_with(
                    status,
                    "Unauthorized",
                    "the API server refuses this watch now",
                );
            }
            StatusCode::GONE => {
                self.take_overlays_back();
                self.state = State::Forgotten;
            }
            // A later try may be answered otherwise; this one said nothing about the watch.
            _ => {}
        }
    }

    fn end_with(&mut self, code: StatusCode, reason: &'static str, message: &str) {
        let status = Status {
            code: code.as_u16(),
            reason,
            message: message.to_owned(),
            retry_after_seconds: None,
            cause: None,
        };
        let encoding = self.client.encoding();
        self.send_as_is(status.event(encoding).frame(encoding));
        self.state = State::Ended;
    }

    /// What exists, to a client that asked for it with the watch.
    fn tell_members(&mut self, known: Snapshot) {
        let version = known.head.resource_version;
        let members = Outgoing::Members(Box::new(known), Cursor::default());
        self.out.push_back(members);
        if self.client.read.options.send_initial_events {
            self.tell_bookmark(version, Bookmark::InitialEventsEnd);
        }
    }

    /// Of this watch, or of the same list in memory.
    fn item_type(&self) -> Option<TypeMeta> {
        if self.item_type.is_some() {
            return self.item_type.clone();
        }
        let client = &self.client;
        let known = local::snapshot(&client.hub.memory, &client.reader, &client.read)?;
        Some(known.item_type)
    }

    fn tell_bookmark(&mut self, version: u64, kind: Bookmark) {
        let wanted =
            kind == Bookmark::InitialEventsEnd || self.client.read.options.allow_watch_bookmarks;
        let encoding = self.client.encoding();
        if wanted && let Some(item_type) = self.item_type() {
            let event = Event::bookmark(encoding, &item_type, version, kind);
            self.send_as_is(event.frame(encoding));
        }
    }
}
