//! From the end of a watch at the API server until it is open there again: the client gets local
//! writes and bookmarks meanwhile.

use culvert_daemon::jittered;
use http::{Response, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};

use super::{BOOKMARK_EVERY, Session, State};
use crate::cache::{Snapshot, WatchStart};
use crate::metrics::Splice;
use crate::relay::is_encoded_as;
use crate::upstream::pool::{AnswerBody, RequestKind};
use crate::upstream::watcher::LinkStatus;
use crate::watches::difference::Versions;
use crate::watches::position::{Position, resumed};
use crate::wire::Bookmark;

/// An API server that has just started may not know a resource for a moment. After so many times it
/// has none, as of a CustomResourceDefinition that was deleted: the client has to be told.
const MISSING_TIMES: u32 = 3;

impl Session {
    /// The watch at the API server has failed, or ended before its time.
    pub(super) fn record_loss(&mut self) {
        self.retry.record_end(self.opened.elapsed());
        self.begin_silence();
    }

    /// Nothing comes of the API server from here on.
    pub(super) fn begin_silence(&mut self) {
        self.state = State::Silent;
        if self.client_has.is_none() {
            self.client_has = self.known_to_client();
        }
        self.local_writes.mark_changed();
    }

    /// The set, if it has the resource version to which the client has come.
    fn known_to_client(&self) -> Option<Snapshot> {
        let known = self.client.snapshot()?;
        if self.position != Position::At(known.head.resource_version) {
            return None;
        }
        Some(known.without_overlays())
    }

    /// Waits until the watch may be opened again, and opens it. Returns when the client is to get
    /// something, or the state has changed.
    pub(super) async fn wait_and_resume(&mut self) {
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
                Ok(()) = self.local_writes.changed() => self.send_overlays(version),
                () = sleep_until(self.next_bookmark) => {
                    self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                    self.send_bookmark(version, Bookmark::Progress);
                }
            }
            if !self.output.is_empty() {
                return;
            }
        }
        self.resume(version).await;
    }

    async fn resume(&mut self, version: u64) {
        let rest = self
            .ends_at
            .map(|end| end.saturating_duration_since(Instant::now()));
        let client = &self.client;
        let uri = resumed(&client.repeatable.uri, version, rest);
        let request = client.repeatable.request(uri);
        let hub = client.hub.clone();
        let credential = client.proof.credential();
        let turn = hub.turns.wait(credential).await;
        let sent = hub.upstream.send(credential, RequestKind::Long, request);
        let sent = sent.await;
        drop(turn);
        match sent {
            Ok(_) if self.cluster_was_restored() => {
                // What the client has is of another history: the API server would be silent.
                self.revert_overlays();
                self.versions = Versions::OfTwoHistories;
                self.state = State::Forgotten;
            }
            Ok(answer) => self.resume_with(answer, version),
            Err(error) => {
                tracing::debug!(error = culvert_daemon::chain(&error), "open a watch again");
            }
        }
    }

    /// Whether the cluster was restored from a backup since the last call.
    fn cluster_was_restored(&mut self) -> bool {
        let restores = self.client.hub.memory.lock().cache.restores();
        std::mem::replace(&mut self.restores, restores) != restores
    }

    fn resume_with(&mut self, answer: Response<AnswerBody>, version: u64) {
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
                self.revert_overlays();
                self.follow(answer.into_body(), WatchStart::At(version));
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
                self.revert_overlays();
                self.state = State::Forgotten;
            }
            StatusCode::NOT_FOUND => {
                self.missing += 1;
                if self.missing >= MISSING_TIMES {
                    metrics.spliced(Splice::Refused);
                    let message = "the API server does not have this resource now";
                    self.end_with(status, "NotFound", message);
                }
            }
            // A later try may be answered otherwise; this one said nothing about the watch.
            _ => {}
        }
    }
}
