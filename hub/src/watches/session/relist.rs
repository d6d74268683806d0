//! A watch whose history the API server has forgotten, as after its restart: the hub lists for its
//! client, and sends it the differences.

use http::StatusCode;

use super::{Client, Session, State};
use crate::cache::Snapshot;
use crate::list_body::ListBody;
use crate::metrics::Splice;
use crate::upstream::SendError;
use crate::upstream::gunzip::accept_gzip;
use crate::upstream::pool::{AnswerBody, AnswerError, RequestKind, gunzipped};
use crate::watches::difference::{self, Versions};
use crate::watches::position::{Position, list_of};
use crate::wire::split::SplitError;
use crate::wire::{Bookmark, Event};
use http_body_util::BodyExt;

/// Why there was no list.
#[derive(Debug, thiserror::Error)]
enum RelistError {
    #[error("send the list")]
    Send(#[from] SendError),
    #[error("the API server answers the list with {0}")]
    Refused(StatusCode),
    #[error("read the list")]
    Read(#[from] AnswerError),
    #[error("understand the list")]
    Split(#[from] SplitError),
    #[error("the list is not what the memory needs")]
    NotKept,
}

impl Session {
    /// Brings the client to the present state, or ends the watch with 410 if it is not known
    /// exactly what the client has: it then lists itself.
    pub(super) async fn send_differences(&mut self) {
        let metrics = self.client.hub.metrics.clone();
        let Some(had) = self.client_has.take() else {
            metrics.spliced(Splice::Gone);
            self.end_with(
                StatusCode::GONE,
                "Expired",
                "too old resource version: list again",
            );
            return;
        };
        match Box::pin(self.list()).await {
            Ok(present) => {
                metrics.spliced(Splice::Relisted);
                self.send_between(&had, &present);
                self.position = Position::At(present.head.resource_version);
                self.client_has = Some(present);
                self.versions = Versions::OfOneHistory;
            }
            Err(error) => {
                tracing::debug!(error = culvert_daemon::chain(&error), "list for a watch");
                // The link may have gone again; the next try begins as this one did. A list that
                // is refused or not understood ends in a 410 then.
                let worth_a_try = matches!(error, RelistError::Send(_) | RelistError::Read(_));
                self.client_has = worth_a_try.then_some(had);
            }
        }
        self.state = State::Silent;
    }

    /// Fills the set by a list with the client's own credential.
    async fn list(&self) -> Result<Snapshot, RelistError> {
        let client = &self.client;
        let mut request = client.repeatable.request(list_of(&client.repeatable.uri));
        accept_gzip(request.headers_mut());
        let credential = client.proof.credential();
        let _turn = client.hub.turns.wait(credential).await;
        let sent = client
            .hub
            .upstream
            .send(credential, RequestKind::Short, request);
        let answer = gunzipped(sent.await?);
        if answer.status() != StatusCode::OK {
            return Err(RelistError::Refused(answer.status()));
        }
        self.fill(answer.into_body()).await?;
        match client.snapshot() {
            Some(present) => Ok(present.without_overlays()),
            None => Err(RelistError::NotKept),
        }
    }

    async fn fill(&self, mut body: AnswerBody) -> Result<(), RelistError> {
        let Client {
            hub, reader, read, ..
        } = &self.client;
        let list = ListBody::start(&hub.memory, read, reader, None);
        let mut list = list.ok_or(RelistError::NotKept)?;
        while let Some(frame) = body.frame().await {
            if let Ok(bytes) = frame?.into_data() {
                list.push(&bytes)?;
            }
        }
        let filled = list.finish(&hub.memory, read, reader)?;
        tracing::debug!(?filled, scope = read.scope.text(), "listed for a watch");
        Ok(())
    }

    fn send_between(&mut self, had: &Snapshot, present: &Snapshot) {
        for (kind, object) in difference::between(had.items(), present.items(), self.versions) {
            let event = Event {
                kind,
                type_meta: present.item_type.clone(),
                object: object.object(),
            };
            self.output.push(&event);
        }
        self.send_bookmark(present.head.resource_version, Bookmark::Progress);
    }
}
