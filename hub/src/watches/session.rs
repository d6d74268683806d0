//! One client's watch, from its first event to its end. It is the body of the answer: when the
//! client goes, all of it goes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_daemon::{Backoff, jittered};
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::position::{Position, resumed};
use crate::answers::local;
use crate::cache::{Applied, Identity, Snapshot, WatchCopy, WatchStart};
use crate::metrics::Splice;
use crate::request::options::AskedVersion;
use crate::server::identity::Proof;
use crate::server::{Hub, Read, is_encoded_as, without_body};
use crate::upstream::watcher::LinkStatus;
use crate::upstream::{Body, BodyError};
use crate::wire::split::EventSplitter;
use crate::wire::status::Status;
use crate::wire::{Encoding, Event, EventKind, TypeMeta};

/// How often a silent watch says how far it has come, as the API server does.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The shortest life that the API server gives to a watch without `timeoutSeconds`.
const LEAST_LIFE: Duration = Duration::from_secs(1800);
/// An end this early is still the one that the client asked for.
const END_TOLERANCE: Duration = Duration::from_secs(2);
/// After a cut, all watches of a node are opened again within this time, its pods first.
const NODE_SPREAD: Duration = Duration::from_secs(2);
/// Those of others, so that many nodes do not all ask at once.
const OTHERS_SPREAD: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(10);

/// Who watches what.
pub(crate) struct Client {
    pub(crate) hub: Arc<Hub>,
    pub(crate) proof: Proof,
    pub(crate) reader: Identity,
    pub(crate) read: Read,
    /// To ask again.
    pub(crate) request: Request<Body>,
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
    body: Incoming,
    splitter: EventSplitter,
    /// The beginning of an event: its client gets whole events only, so that another connection
    /// can go on after any of them.
    begun: BytesMut,
    copy: WatchCopy,
}

enum State {
    Live(Live),
    /// The events were not understood: they are passed on as they come, to the end.
    Raw(Incoming),
    /// Nothing comes until the link is back.
    Silent,
    Ended,
}

/// The watch.
pub(crate) struct Session {
    client: Client,
    state: State,
    position: Position,
    item_type: Option<TypeMeta>,
    /// What the client is to get next.
    out: VecDeque<Bytes>,
    link: watch::Receiver<LinkStatus>,
    /// When a client that asked for an end expects it.
    ends_at: Option<Instant>,
    started: Instant,
    retry: Backoff,
    next_bookmark: Instant,
}

impl Session {
    /// A watch that the API server has begun to answer.
    pub(crate) fn passed_on(client: Client, body: Incoming) -> Self {
        let options = &client.read.options;
        let start = match options.resource_version {
            _ if options.send_initial_events => WatchStart::Streaming,
            AskedVersion::At(version) => WatchStart::At(version),
            AskedVersion::Any | AskedVersion::Newest => WatchStart::Anywhere,
        };
        let position = Position::of_request(options);
        let mut session = Self::new(client, position);
        session.go_live(body, start);
        session
    }

    /// A watch that begins while there is no link.
    pub(crate) fn from_memory(client: Client, known: &Snapshot) -> Self {
        let version = known.head.resource_version;
        let position = Position::of_request(&client.read.options);
        let told = position == Position::InitialEvents;
        let mut session = Self::new(client, position);
        session.item_type = Some(known.item_type.clone());
        if told {
            session.tell_members(known);
            session.position = Position::At(version);
        }
        session
    }

    fn new(client: Client, position: Position) -> Self {
        let now = Instant::now();
        let asked = client.read.options.timeout_seconds;
        let asked = asked.filter(|seconds| *seconds > 0);
        Self {
            state: State::Silent,
            position,
            item_type: None,
            out: VecDeque::new(),
            link: client.hub.upstream.link.subscribe(),
            ends_at: asked.map(|seconds| now + Duration::from_secs(seconds.min(24 * 3600))),
            started: now,
            retry: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
            next_bookmark: now + BOOKMARK_EVERY,
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
            if let Some(bytes) = self.out.pop_front() {
                return Some(Ok(bytes));
            }
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
                        frame = live.body.frame() => frame,
                        _ = self.link.wait_for(|link| !link.is_up()) => {
                            self.state = State::Silent;
                            continue;
                        }
                    };
                    match frame {
                        Some(Ok(frame)) => self.take(frame),
                        Some(Err(_)) => self.lost(),
                        None => self.upstream_ended(),
                    }
                }
                State::Silent => self.wait_and_resume().await,
            }
        }
    }

    fn go_live(&mut self, body: Incoming, start: WatchStart) {
        let memory = &self.client.hub.memory;
        let copy = memory
            .lock()
            .cache
            .start_watch(&self.client.read.scope, start);
        self.state = State::Live(Live {
            body,
            splitter: EventSplitter::new(self.client.encoding()),
            begun: BytesMut::new(),
            copy,
        });
    }

    /// Takes bytes of the API server: whole events go to the client and to the memory.
    fn take(&mut self, frame: Frame<Bytes>) {
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
                    live.begun.extend_from_slice(&before[..before.len() - rest.len()]);
                    let whole = live.begun.split().freeze();
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
        if let EventKind::Error { code } = event.kind
            && self.resumes()
            && code == StatusCode::GONE.as_u16()
        {
            self.client.hub.metrics.spliced(Splice::Gone);
        }
        self.position = self.position.after(&event);
        let client = &self.client;
        if let State::Live(live) = &mut self.state {
            let now = client.hub.memory.now();
            let cache = &mut client.hub.memory.lock().cache;
            let applied = cache.apply(&mut live.copy, &event, &client.reader, now);
            if applied == Applied::Behind {
                client.hub.metrics.copy_is_behind("gap");
            }
        }
        if matches!(event.kind, EventKind::Error { .. }) {
            self.state = State::Ended;
        } else {
            self.item_type = Some(event.type_meta);
        }
        self.out.push_back(bytes);
    }

    /// Whether this watch was opened again after a cut.
    fn resumes(&self) -> bool {
        self.retry_count() > 0
    }
}
