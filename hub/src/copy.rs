//! The copy of an answer on its way to a client. The client goes first: a copy that does not keep
//! up is given up, and its set is behind.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::budget::Charge;
use crate::cache::documents::{DOCUMENT_MAX, Document};
use crate::cache::{Digester, Filled, Identity, Verb};
use crate::list_body::{ListBody, is_kind_of};
use crate::memory::Memory;
use crate::metrics::{DOCUMENT_TOO_LONG, Metrics, QUEUE_FULL};
use crate::reads::Read;
use crate::request::discovery::DocumentRead;
use crate::upstream::pool::AnswerBody;
use crate::upstream::{Body, BodyError};
use crate::wire::split::{ObjectSplitter, SplitError};

/// What one copy may hold while it waits.
const MAX_QUEUED_BYTES: usize = 256 << 10;
/// Smaller ones count as nothing.
pub(crate) const SMALL_COPY: usize = 8 << 10;
/// How Go's servers say 404.
const NO_SUCH_PATH: &[u8] = b"404 page not found";
/// Chunks of small answers are small too.
const MAX_QUEUED_CHUNKS: usize = 1024;

/// The tasks that read copies.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<JoinSet<()>>);

/// What is copied, and for whom.
pub(crate) struct CopyOf {
    pub(crate) memory: Memory,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) reader: Identity,
    pub(crate) copied: Copied,
}

/// What the answer is.
pub(crate) enum Copied {
    /// An object or a list.
    Objects(Box<Read>),
    Document(DocumentCopy),
}

/// A document without its bytes.
pub(crate) struct DocumentCopy {
    pub(crate) read: DocumentRead,
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) etag: Option<String>,
}

impl DocumentCopy {
    /// Load balancers and captive portals have pages of their own, for 404 and even for 200.
    fn is_of_api_server(&self, body: &[u8]) -> bool {
        let is_missing = self.status == StatusCode::NOT_FOUND;
        self.content_type.starts_with("application/")
            || is_missing && body.starts_with(NO_SUCH_PATH)
    }
}

enum Chunk {
    Bytes(Bytes),
    /// The answer is complete.
    End,
}

impl Copies {
    /// Copies a body while it is read.
    pub(crate) fn tee(&self, body: AnswerBody, copy: CopyOf, charge: Charge) -> Body {
        let (chunk_tx, chunk_rx) = mpsc::channel(MAX_QUEUED_CHUNKS);
        let queued = Arc::new(AtomicUsize::new(0));
        let copy = Arc::new(copy);
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        let chunks = Chunks {
            chunks: chunk_rx,
            queued: queued.clone(),
            charge,
            copy: copy.clone(),
        };
        tasks.spawn(run(copy.clone(), chunks));
        let queue = Some(Queue {
            chunk_tx,
            queued,
            copy,
        });
        let body = CopiedBody {
            body,
            queue,
            let_copy_run: false,
        };
        body.boxed_unsync()
    }
}

/// The way from a body to the task that reads its copy.
struct Queue {
    chunk_tx: mpsc::Sender<Chunk>,
    queued: Arc<AtomicUsize>,
    copy: Arc<CopyOf>,
}

impl Queue {
    /// `false`: the copy does not keep up.
    fn push(&self, bytes: &Bytes) -> bool {
        let queued = self.queued.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        queued <= MAX_QUEUED_BYTES && self.chunk_tx.try_send(Chunk::Bytes(bytes.clone())).is_ok()
    }

    /// A task that has ended wanted no copy, or has said already that it is behind.
    fn give_up(&self) {
        if !self.chunk_tx.is_closed() {
            self.copy.is_behind(QUEUE_FULL);
        }
    }

    fn is_half_full(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > MAX_QUEUED_BYTES / 2
    }
}

/// A body whose frames are copied.
struct CopiedBody {
    body: AnswerBody,
    /// `None`: the copy was given up or is complete.
    queue: Option<Queue>,
    /// The thread is the copy's for one turn: it would not get one before the client has all that
    /// it takes at once, which may be more than fits into the queue.
    let_copy_run: bool,
}

impl hyper::body::Body for CopiedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if std::mem::take(&mut self.let_copy_run) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => self.copy(frame),
            Some(Err(_)) => self.queue = None,
            None => self.finish(),
        }
        if self.body.is_end_stream() {
            self.finish();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl CopiedBody {
    fn copy(&mut self, frame: &Frame<Bytes>) {
        let Some(queue) = &self.queue else {
            return;
        };
        let Some(bytes) = frame.data_ref() else {
            return;
        };
        if queue.push(bytes) {
            self.let_copy_run = queue.is_half_full();
            return;
        }
        queue.give_up();
        self.queue = None;
    }

    fn finish(&mut self) {
        if let Some(queue) = self.queue.take()
            && queue.chunk_tx.try_send(Chunk::End).is_err()
        {
            queue.give_up();
        }
    }
}

impl CopyOf {
    fn is_behind(&self, reason: &'static str) {
        self.metrics.copy_is_behind(reason);
        match &self.copied {
            Copied::Objects(read) => self.memory.lock().cache.mark_behind(&read.scope),
            // The earlier one stays: it was whole.
            Copied::Document(_) => {}
        }
    }
}

async fn run(copy: Arc<CopyOf>, chunks: Chunks) {
    let copied = match &copy.copied {
        Copied::Objects(read) if read.verb == Verb::Get => copy_object(&copy, read, chunks).await,
        Copied::Objects(read) => copy_list(&copy, read, chunks).await,
        Copied::Document(document) => {
            copy_document(&copy, document, chunks).await;
            return;
        }
    };
    if let Err(error) = copied {
        tracing::debug!(%error, "an answer was not understood");
        copy.is_behind(error.reason());
    }
}

struct Chunks {
    chunks: mpsc::Receiver<Chunk>,
    queued: Arc<AtomicUsize>,
    charge: Charge,
    copy: Arc<CopyOf>,
}

impl Chunks {
    /// What the copy has taken so far.
    fn copied(&mut self, bytes: usize) {
        if bytes >= SMALL_COPY {
            self.charge.set(bytes);
        }
    }

    /// `None`: the answer is not complete and nothing more comes.
    async fn next(&mut self) -> Option<Chunk> {
        if self.charge.has_ended() {
            self.copy.is_behind(QUEUE_FULL);
            return None;
        }
        let chunk = self.chunks.recv().await?;
        if let Chunk::Bytes(bytes) = &chunk {
            self.queued.fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        Some(chunk)
    }
}

async fn copy_document(copy: &CopyOf, document: &DocumentCopy, mut chunks: Chunks) {
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Chunk::Bytes(bytes) if body.len() + bytes.len() > DOCUMENT_MAX => {
                copy.is_behind(DOCUMENT_TOO_LONG);
                return;
            }
            Chunk::Bytes(bytes) => {
                body.extend_from_slice(&bytes);
                chunks.copied(body.capacity());
            }
            Chunk::End if !document.is_of_api_server(&body) => return,
            Chunk::End => {
                let DocumentCopy {
                    read,
                    status,
                    content_type,
                    etag,
                } = document;
                let document = Document {
                    status: *status,
                    content_type: content_type.clone(),
                    etag: etag.clone(),
                    body: Document::packed(body.into()),
                    confirmed: copy.memory.now().wall,
                };
                let documents = &mut copy.memory.lock().cache.documents;
                documents.record(read, document);
                documents.allow(&copy.reader, &read.path);
                return;
            }
        }
    }
}

async fn copy_object(copy: &CopyOf, read: &Read, mut chunks: Chunks) -> Result<(), SplitError> {
    let mut splitter = ObjectSplitter::new(read.encoding(), read.shape());
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Chunk::Bytes(bytes) => {
                splitter.push(&bytes)?;
                chunks.copied(splitter.body().len());
            }
            Chunk::End => {
                return record_object(copy, read, splitter);
            }
        }
    }
    Ok(())
}

fn record_object(copy: &CopyOf, read: &Read, splitter: ObjectSplitter) -> Result<(), SplitError> {
    let mut body = Digester::new();
    body.write(splitter.body());
    let scope = &read.scope;
    let reader = &copy.reader;
    let body = body.digest();
    let now = copy.memory.now();
    let confirmed = {
        let cache = &mut copy.memory.lock().cache;
        cache.confirm_object(scope, body, reader, now)
    };
    if confirmed.is_none() {
        let (item_type, object) = splitter.finish()?;
        if !is_kind_of(read.shape(), &item_type.kind) {
            return Ok(());
        }
        let cache = &mut copy.memory.lock().cache;
        if cache.record_object(scope, &item_type, object, reader, now) == Filled::Whole {
            cache.record_digest(scope, body);
        }
    }
    Ok(())
}

async fn copy_list(copy: &CopyOf, read: &Read, mut chunks: Chunks) -> Result<(), SplitError> {
    let options = &read.options;
    let token = Some(&*options.continue_token).filter(|token| !token.is_empty());
    let list =
        (!options.is_exact()).then(|| ListBody::start(&copy.memory, read, &copy.reader, token));
    let Some(mut list) = list.flatten() else {
        return Ok(());
    };
    while let Some(chunk) = chunks.next().await {
        match chunk {
            Chunk::Bytes(bytes) => {
                list.push(&bytes)?;
                chunks.copied(list.bytes());
            }
            Chunk::End => {
                let filled = list.finish(&copy.memory, read, &copy.reader)?;
                tracing::debug!(?filled, scope = read.scope.text(), "a list was copied");
                return Ok(());
            }
        }
    }
    Ok(())
}
