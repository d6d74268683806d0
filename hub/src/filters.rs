//! Filters: what the node sees otherwise than the API server says it, so that its pods find the hub
//! and trust it. They are off without a pod port.
//!
//! A filter changes one value in the bytes of an answer on its way to kubelet, from the API server
//! or from memory. Memory itself has what the API server said. What a filter does not understand
//! passes unchanged, and is counted.

mod master_service;
mod root_ca;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;

pub(crate) use self::master_service::is_of_this_host;
use crate::cache::{Identity, Verb};
use crate::metrics::{FilterKind, Metrics};
use crate::reads::Read;
use crate::relay::is_encoded_as;
use crate::upstream::{Body, full};
use crate::wire::replace::{self, EditBody, Edited};
use crate::wire::split::SplitError;
use crate::wire::{Encoding, Shape};

/// An answer that is longer passes unchanged: protobuf says how long a list is before its first
/// item, so a list is held whole. 10,000 services are some 10 MiB.
const MAX_BODY: usize = 32 << 20;

/// All filters of the hub.
pub(crate) struct Filters {
    pods: Arc<Pods>,
    metrics: Arc<Metrics>,
}

/// How pods reach the hub, and why they trust it.
struct Pods {
    /// The pod ports. Without any there is no filter.
    addresses: Vec<SocketAddr>,
    /// The certificate of the local authority (PEM).
    authority: String,
}

/// The filter of the answer to one read.
#[derive(Clone)]
pub(crate) struct Filter {
    change: Change,
    verb: Verb,
    encoding: Encoding,
    pods: Arc<Pods>,
    metrics: Arc<Metrics>,
}

#[derive(Clone, Copy)]
enum Change {
    MasterService,
    RootCaOfConfigMaps,
    RootCaOfSecrets,
}

impl Change {
    fn kind(self) -> FilterKind {
        match self {
            Self::MasterService => FilterKind::MasterService,
            Self::RootCaOfConfigMaps | Self::RootCaOfSecrets => FilterKind::RootCa,
        }
    }
}

impl Filters {
    pub(crate) fn new(addresses: Vec<SocketAddr>, authority: &str, metrics: Arc<Metrics>) -> Self {
        Self {
            pods: Arc::new(Pods {
                addresses,
                authority: authority.to_owned(),
            }),
            metrics,
        }
    }

    /// Where pods are served.
    pub(crate) fn pod_addresses(&self) -> &[SocketAddr] {
        &self.pods.addresses
    }

    /// The filter of what the node reads; answers to others are not changed.
    pub(crate) fn of(&self, reader: Option<&Identity>, read: &Read) -> Option<Filter> {
        let representation = &read.scope.representation;
        let resource = &representation.resource;
        let may_apply = !self.pods.addresses.is_empty()
            && reader == Some(&Identity::Node)
            && representation.shape == Shape::Object
            && resource.group.is_empty()
            && resource.version == "v1";
        let change = match &*resource.resource {
            _ if !may_apply => return None,
            "services" => Change::MasterService,
            "configmaps" => Change::RootCaOfConfigMaps,
            "secrets" => Change::RootCaOfSecrets,
            _ => return None,
        };
        Some(Filter {
            change,
            verb: read.verb,
            encoding: representation.encoding,
            pods: self.pods.clone(),
            metrics: self.metrics.clone(),
        })
    }
}

impl Filter {
    /// The answer to a get or list, changed.
    pub(crate) async fn answer(&self, answer: Response<Body>) -> Response<Body> {
        let is_read =
            answer.status() == StatusCode::OK && is_encoded_as(answer.headers(), self.encoding);
        if !is_read {
            return answer;
        }
        let (mut head, body) = answer.into_parts();
        let body = match read_body(body).await {
            ReadBody::Whole(body) => {
                let body = self.changed(
                    body,
                    match self.verb {
                        Verb::Get => replace::object,
                        Verb::List | Verb::Watch => replace::list,
                    },
                );
                head.headers.remove(header::CONTENT_LENGTH);
                full(body)
            }
            ReadBody::Begun(body) => {
                self.failed();
                body
            }
        };
        Response::from_parts(head, body)
    }

    /// A whole event of a watch, changed.
    pub(crate) fn event(&self, frame: Bytes) -> Bytes {
        self.changed(frame, replace::event)
    }

    /// Counts what passes unchanged because it was not understood.
    pub(crate) fn failed(&self) {
        self.metrics.filter_failed(self.change.kind());
    }

    fn changed(&self, bytes: Bytes, edit_body: EditBody) -> Bytes {
        // One object that is not understood leaves the others as they should be.
        let changed = edit_body(self.encoding, &bytes, &mut |object| match self
            .changed_object(object)
        {
            Ok(changed) => Ok(changed),
            Err(error) => {
                self.not_understood(error);
                Ok(None)
            }
        });
        match changed {
            Ok(Some(changed)) => changed.into(),
            Ok(None) => bytes,
            Err(error) => {
                self.not_understood(error);
                bytes
            }
        }
    }

    fn changed_object(&self, object: &[u8]) -> Edited {
        let encoding = self.encoding;
        let pods = &self.pods;
        match self.change {
            Change::MasterService => {
                master_service::lead_to(encoding, object, &pods.addresses, is_of_this_host)
            }
            Change::RootCaOfConfigMaps => {
                root_ca::append_to_config_map(encoding, object, &pods.authority)
            }
            Change::RootCaOfSecrets => root_ca::append_to_secret(encoding, object, &pods.authority),
        }
    }

    fn not_understood(&self, error: SplitError) {
        let filter: &str = self.change.kind().into();
        tracing::debug!(%error, filter, "an answer is passed on unchanged");
        self.failed();
    }
}

/// A body that was read as far as it may be held.
enum ReadBody {
    Whole(Bytes),
    /// It is too long, or was cut: what came of it, and what is still to come.
    Begun(Body),
}

async fn read_body(mut body: Body) -> ReadBody {
    let mut parts = Vec::new();
    let mut length = 0;
    let mut error = None;
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(part)) => {
                length += part.len();
                parts.push(part);
            }
            // The API server sends no trailers.
            Ok(Err(_)) => {}
            Err(cut) => error = Some(cut),
        }
        if length > MAX_BODY || error.is_some() {
            let parts = stream::iter(parts).map(|part| Ok(Frame::data(part)));
            let rest = stream::iter(error.map(Err)).chain(BodyStream::new(body));
            return ReadBody::Begun(StreamBody::new(parts.chain(rest)).boxed_unsync());
        }
    }
    ReadBody::Whole(parts.concat().into())
}

#[cfg(test)]
mod tests;
