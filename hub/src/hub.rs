//! The parts of a running hub, and what it does with every request: it learns who asks and what the
//! API server allows, and passes on.

use std::sync::Arc;

use http::{Request, Response, StatusCode};

use crate::budget::{Budget, Charge};
use crate::cache::{Identity, Verb, Verdict};
use crate::copy::{Copied, Copies, CopyOf};
use crate::filters::Filters;
use crate::guests::Guests;
use crate::identity::{Proof, Token};
use crate::limits::Limits;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::reads::Read;
use crate::refusal;
use crate::relay::relayed;
use crate::reviews::Reviews;
use crate::turns::Turns;
use crate::upstream::pool::{AnswerBody, RequestKind};
use crate::upstream::{Body, Credential, Upstream, remove_hop_by_hop};

/// What every request needs.
pub(crate) struct Hub {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) memory: Memory,
    pub(crate) limits: Limits,
    pub(crate) guests: Guests,
    pub(crate) budget: Budget,
    pub(crate) reviews: Reviews,
    pub(crate) turns: Turns,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) copies: Copies,
    pub(crate) filters: Filters,
}

impl Hub {
    /// The identity that the API server took this client for, if that is known.
    pub(crate) fn identity(&self, proof: &Proof) -> Option<Identity> {
        match proof {
            Proof::Node => Some(Identity::Node),
            Proof::Token(token) => self.memory.lock().tokens.identity_of(&token.digest),
            Proof::Nothing => None,
        }
    }

    /// Records what the status of an answer says about a token; returns the owner of the token.
    pub(crate) fn learn(&self, proof: &Proof, status: StatusCode) -> Option<Identity> {
        match proof {
            Proof::Node => Some(Identity::Node),
            Proof::Token(token) if status == StatusCode::UNAUTHORIZED => {
                let now = self.memory.now();
                let tokens = &mut self.memory.lock().tokens;
                tokens.record_refusal(&token.digest, now);
                None
            }
            Proof::Token(Token {
                digest,
                owner: Some(owner),
                expires,
            }) if status.is_success() => {
                let mut kept = self.memory.lock();
                kept.tokens.learn_identity(digest, owner, *expires);
                Some(owner.clone())
            }
            Proof::Token(token) => self.memory.lock().tokens.identity_of(&token.digest),
            Proof::Nothing => None,
        }
    }

    /// Passes an answer on, and a copy of it to the memory.
    pub(crate) fn copy(
        &self,
        reader: Identity,
        copied: Copied,
        answer: Response<AnswerBody>,
    ) -> Response<Body> {
        let copy = CopyOf {
            memory: self.memory.clone(),
            metrics: self.metrics.clone(),
            reader,
            copied,
        };
        let credential = credential_of(&copy.reader);
        let charge = (self.budget).charge_copy(credential, &copy.reader.to_string());
        let (mut head, body) = answer.into_parts();
        remove_hop_by_hop(&mut head.headers);
        Response::from_parts(head, self.copies.tee(body, copy, charge))
    }

    /// For what the answer that is served now holds of this reader's budget.
    pub(crate) fn charge(&self, reader: &Identity) -> Charge {
        self.budget
            .charge(credential_of(reader), &reader.to_string())
    }

    /// Passes a request on; nothing is remembered.
    pub(crate) async fn pass(
        &self,
        proof: &Proof,
        kind: RequestKind,
        request: Request<Body>,
    ) -> Response<Body> {
        let link = self.upstream.link.status(proof.credential());
        if !link.is_up() {
            return refusal::unavailable(&link.reason);
        }
        match self.upstream.send(proof.credential(), kind, request).await {
            Ok(answer) => relayed(answer),
            Err(error) => refusal::unavailable(&culvert_daemon::chain(&error)),
        }
    }

    /// Remembers what the API server has decided about this read. A 404 to a GET says that the
    /// object does not exist.
    pub(crate) fn record_verdict(&self, reader: &Identity, read: &Read, status: StatusCode) {
        let verdict = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Verdict::Refused,
            StatusCode::GONE => Verdict::Allowed,
            StatusCode::NOT_FOUND if read.verb == Verb::Get => Verdict::Allowed,
            status if status.is_success() => Verdict::Allowed,
            _ => return,
        };
        let now = self.memory.now();
        let cache = &mut self.memory.lock().cache;
        cache.record_verdict(reader, read.verb, &read.scope, verdict, now);
        if status == StatusCode::NOT_FOUND && read.verb == Verb::Get {
            cache.record_absence(&read.scope, reader, now);
        }
    }
}

fn credential_of(reader: &Identity) -> Credential {
    match reader {
        Identity::Node => Credential::Node,
        Identity::ServiceAccount { .. } | Identity::User(_) => Credential::Bearer,
    }
}
