//! Checks who may ask and how many questions are in progress, and counts the answers.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Edns, Header, HeaderCounts, Message, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecoder, BinEncoder};
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::server::{Request, RequestHandler, RequestInfo, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::{MessageResponseBuilder, Queries};
use tokio::sync::{Semaphore, watch};

use super::answer::{Answer, answer, refusal, unknown};
use super::clients::Clients;
use super::forward::Forwarder;
use super::{MIN_PAYLOAD, Origin, UDP_PAYLOAD};
use crate::config::NodeIps;
use crate::directory::Feed;
use crate::metrics::DnsMetrics;

/// Questions in progress; each takes microseconds, so more are a flood.
const CONCURRENT: usize = 512;
/// The longest label of a name; a larger length byte is a compression pointer.
const LABEL_MAX: u8 = 63;
/// Bytes after the name of a question.
const TYPE_AND_CLASS: usize = 4;
/// The only version of EDNS.
const EDNS_VERSION: u8 = 0;

/// Answers requests.
pub(super) struct Handler {
    origin: Origin,
    clients: Clients,
    node: NodeIps,
    feed: watch::Receiver<Feed>,
    permits: Semaphore,
    forward: Option<Forwarder>,
    metrics: DnsMetrics,
}

/// The handler as hickory's server takes it, shared with TCP.
pub(super) struct SharedHandler(pub(super) Arc<Handler>);

/// An answer's message without the question.
struct Reply {
    metadata: Metadata,
    answers: Vec<Record>,
    authorities: Vec<Record>,
    additionals: Vec<Record>,
    /// Goes into the authority section, where it limits how long a negative answer may be cached.
    soa: Option<Record>,
    edns: Option<Edns>,
}

impl Handler {
    pub(super) fn new(
        origin: Origin,
        clients: Clients,
        node: NodeIps,
        feed: watch::Receiver<Feed>,
        metrics: DnsMetrics,
    ) -> Self {
        Self {
            origin,
            clients,
            node,
            feed,
            permits: Semaphore::new(CONCURRENT),
            forward: None,
            metrics,
        }
    }

    pub(super) fn forwarding(self, forward: Option<Forwarder>) -> Self {
        Self { forward, ..self }
    }

    /// Whether a client may ask.
    pub(super) fn is_allowed(&self, client: IpAddr) -> bool {
        self.clients.admit(client)
    }

    /// The answer's bytes, for TCP.
    pub(super) async fn respond(&self, request: &Request) -> Option<Vec<u8>> {
        let reply = self.reply(request, Protocol::Tcp).await?;
        let mut bytes = Vec::new();
        let nothing = nothing_asked();
        let builder =
            MessageResponseBuilder::new(repeated(request).unwrap_or(&nothing), reply.edns.as_ref());
        let Reply {
            metadata,
            answers,
            authorities,
            additionals,
            soa,
            ..
        } = &reply;
        let response = builder.build(*metadata, answers, authorities, soa, additionals);
        response
            .destructive_emit(&mut BinEncoder::new(&mut bytes))
            .ok()
            .map(|_info| bytes)
    }

    /// `None` if too many questions are in progress: a refusal would cost as much as an answer, and
    /// the client asks again.
    async fn reply(&self, request: &Request, protocol: Protocol) -> Option<Reply> {
        let own = {
            let _permit = self.permits.try_acquire().ok()?;
            self.answer(request)
        };
        let reply = match (own, &self.forward) {
            (Ok(answer), _) => Reply::own(request, answer),
            (Err(UnknownName), None) => Reply::own(request, refusal()),
            (Err(UnknownName), Some(forward)) => match forward.ask(request, protocol).await {
                Some(answer) => Reply::forwarded(request, answer),
                None => Reply::own(request, unknown()),
            },
        };
        self.metrics.record_answer(reply.metadata.response_code);
        Some(reply)
    }

    /// The answer, if the question is about a name that is ours.
    fn answer(&self, request: &Request) -> Result<Answer, UnknownName> {
        let asked = match self.check(request) {
            Ok(asked) => asked,
            Err(code) => {
                return Ok(Answer { code, ..refusal() });
            }
        };
        let kind = asked.query.query_type();
        let mut name = Name::from(asked.query.name());
        name.set_fqdn(true);
        let directory = self.feed.borrow().directory.clone();
        let found = match directory {
            Some(directory) => answer(&directory, &self.origin, self.node, &name, kind),
            // A bare name may be a node's; another server's answer to it would be cached.
            None if self.origin.contains(&name)
                || (self.forward.is_some() && name.num_labels() == 1) =>
            {
                unknown()
            }
            None => return Err(UnknownName),
        };
        if found.code == ResponseCode::Refused {
            Err(UnknownName)
        } else {
            Ok(found)
        }
    }

    /// The question, or the code that refuses it whatever its name.
    fn check<'a>(&self, request: &'a Request) -> Result<RequestInfo<'a>, ResponseCode> {
        let Ok(asked) = request.request_info() else {
            return Err(ResponseCode::FormErr);
        };
        if repeated(request).is_none() {
            return Err(ResponseCode::FormErr);
        }
        let edns = request.edns.as_ref();
        if edns.is_some_and(|edns| edns.version() > EDNS_VERSION) {
            // The client asks again in the version that the answer names (RFC 6891, 6.1.3).
            return Err(ResponseCode::BADVERS);
        }
        if request.metadata.op_code != OpCode::Query {
            return Err(ResponseCode::NotImp);
        }
        let kind = asked.query.query_type();
        let transfer = matches!(kind, RecordType::AXFR | RecordType::IXFR);
        if !self.is_allowed(asked.src.ip()) || asked.query.query_class() != DNSClass::IN || transfer
        {
            return Err(ResponseCode::Refused);
        }
        Ok(asked)
    }
}

/// The name is not ours; another server may know it.
struct UnknownName;

impl Reply {
    fn own(request: &Request, answer: Answer) -> Self {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = answer.code;
        metadata.authoritative =
            matches!(answer.code, ResponseCode::NoError | ResponseCode::NXDomain);
        let (authorities, additionals) = Default::default();
        let edns = edns(request, answer.code, false);
        Self {
            metadata,
            answers: answer.answers,
            authorities,
            additionals,
            soa: answer.soa,
            edns,
        }
    }

    fn forwarded(request: &Request, answer: Message) -> Self {
        let theirs = answer.metadata;
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = theirs.response_code;
        metadata.authoritative = theirs.authoritative;
        metadata.truncation = theirs.truncation;
        metadata.recursion_available = theirs.recursion_available;
        metadata.authentic_data = theirs.authentic_data;
        let signed = answer
            .edns
            .as_ref()
            .is_some_and(|edns| edns.flags().dnssec_ok);
        let edns = edns(request, theirs.response_code, signed);
        let Message {
            answers,
            authorities,
            additionals,
            ..
        } = answer;
        Self {
            metadata,
            answers,
            authorities,
            additionals,
            soa: None,
            edns,
        }
    }
}

/// EDNS goes only to clients that use it.
fn edns(request: &Request, code: ResponseCode, dnssec_ok: bool) -> Option<Edns> {
    request.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(asked.max_payload().clamp(MIN_PAYLOAD, UDP_PAYLOAD));
        edns.set_version(EDNS_VERSION)
            .set_rcode_high(code.high())
            .set_dnssec_ok(dnssec_ok);
        edns
    })
}

/// UDP requests come from hickory's server.
#[async_trait]
impl RequestHandler for SharedHandler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut udp: R,
    ) -> ResponseInfo {
        let Some(reply) = self.0.reply(request, Protocol::Udp).await else {
            return unsent(request);
        };
        let nothing = nothing_asked();
        let builder =
            MessageResponseBuilder::new(repeated(request).unwrap_or(&nothing), reply.edns.as_ref());
        let Reply {
            metadata,
            answers,
            authorities,
            additionals,
            soa,
            ..
        } = &reply;
        let response = builder.build(*metadata, answers, authorities, soa, additionals);
        match udp.send_response(response).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(client.addr = %request.src(), %error, "DNS answer not sent");
                unsent(request)
            }
        }
    }
}

/// The questions as an answer repeats them, byte for byte. `None` if a name in them is compressed:
/// in the answer its pointer would lead to other bytes.
fn repeated(request: &Request) -> Option<&Queries> {
    let queries = &request.queries;
    is_whole(queries.as_bytes(), queries.len()).then_some(queries)
}

fn is_whole(mut questions: &[u8], count: usize) -> bool {
    (0..count).all(|_| {
        while let [length @ 1..=LABEL_MAX, rest @ ..] = questions {
            questions = rest.get(usize::from(*length)..).unwrap_or_default();
        }
        let [0, rest @ ..] = questions else {
            return false;
        };
        questions = rest.get(TYPE_AND_CLASS..).unwrap_or_default();
        true
    })
}

fn nothing_asked() -> Queries {
    Queries::read(&mut BinDecoder::new(&[]), 0).expect("no question takes no bytes")
}

/// What hickory expects for an answer that was not sent.
fn unsent(request: &Request) -> ResponseInfo {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.response_code = ResponseCode::ServFail;
    Header {
        metadata,
        counts: HeaderCounts::default(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_point_elsewhere_are_not_repeated() {
        let whole = b"\x06edge-1\x00\x00\x01\x00\x01";
        assert!(is_whole(whole, 1) && is_whole(&[], 0) && is_whole(&whole.repeat(2), 2));
        assert!(is_whole(b"\x00\x00\x01\x00\x01", 1), "the root");
        assert!(
            !is_whole(b"\xc0\x02\x00\x01\x00\x01", 1),
            "into the header, whose bits an answer changes"
        );
        assert!(
            !is_whole(b"\x01x\xc0\x0c\x00\x01\x00\x01", 1),
            "behind a label"
        );
        assert!(
            !is_whole(&[&whole[..], b"\xc0\x0c\x00\x01\x00\x01"].concat(), 2),
            "the second"
        );
        assert!(!is_whole(b"\x3f too short", 1));
    }
}
