//! Between the sockets and the answers: who may ask, how many at once, and what is counted.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Edns, Header, HeaderCounts, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecoder, BinEncoder};
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::{MessageResponseBuilder, Queries};
use ipnet::IpNet;
use tokio::sync::{Semaphore, watch};

use super::Zone;
use super::answer::{Answer, answer, refused, unknown};
use crate::config::NodeIps;
use crate::directory::Feed;
use crate::metrics::DnsMetrics;

/// Questions in progress; each takes microseconds, so more are a flood.
const CONCURRENT: usize = 512;
/// What we send over UDP at most, by DNS Flag Day 2020: larger datagrams get fragmented and lost.
pub(super) const UDP_PAYLOAD: u16 = 1232;
/// The longest label of a name; what would be a longer one points elsewhere.
const LABEL_MAX: u8 = 63;
/// Bytes behind the name of a question.
const TYPE_AND_CLASS: usize = 4;
/// The only one there is.
const EDNS_VERSION: u8 = 0;
/// What every client takes without EDNS, RFC 1035.
pub(super) const LEAST_PAYLOAD: u16 = 512;

/// Answers requests.
pub(super) struct Handler {
    zone: Zone,
    clients: Vec<IpNet>,
    node: NodeIps,
    feed: watch::Receiver<Feed>,
    permits: Semaphore,
    metrics: DnsMetrics,
}

/// The handler as hickory's server takes it, shared with TCP.
pub(super) struct Shared(pub(super) Arc<Handler>);

/// All that an answer's message is made of besides the question.
struct Reply {
    metadata: Metadata,
    answer: Answer,
    edns: Option<Edns>,
}

impl Handler {
    pub(super) fn new(
        zone: Zone,
        clients: Vec<IpNet>,
        node: NodeIps,
        feed: watch::Receiver<Feed>,
        metrics: DnsMetrics,
    ) -> Self {
        Self { zone, clients, node, feed, permits: Semaphore::new(CONCURRENT), metrics }
    }

    /// Whether a client is one of those that may ask.
    pub(super) fn is_allowed(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.clients.iter().any(|range| range.contains(&client))
    }

    /// The answer's bytes, for TCP.
    pub(super) fn respond(&self, request: &Request) -> Option<Vec<u8>> {
        let reply = self.reply(request);
        let mut bytes = Vec::new();
        let nothing = nothing_asked();
        let builder = MessageResponseBuilder::new(repeated(request).unwrap_or(&nothing), reply.edns.as_ref());
        let none: [&Record; 0] = [];
        let response = builder.build(reply.metadata, &reply.answer.answers, none, reply.answer.soa.as_ref(), none);
        response.destructive_emit(&mut BinEncoder::new(&mut bytes)).ok().map(|_info| bytes)
    }

    fn reply(&self, request: &Request) -> Reply {
        let answer = self.answer(request);
        self.metrics.answered(answer.code);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = answer.code;
        metadata.authoritative = matches!(answer.code, ResponseCode::NoError | ResponseCode::NXDomain);
        let edns = request.edns.as_ref().map(|asked| {
            let mut edns = Edns::new();
            edns.set_max_payload(asked.max_payload().clamp(LEAST_PAYLOAD, UDP_PAYLOAD));
            edns.set_version(EDNS_VERSION).set_rcode_high(answer.code.high());
            edns
        });
        Reply { metadata, answer, edns }
    }

    fn answer(&self, request: &Request) -> Answer {
        let (Ok(info), Some(_)) = (request.request_info(), repeated(request)) else {
            return Answer { code: ResponseCode::FormErr, ..refused() };
        };
        if request.edns.as_ref().is_some_and(|asked| asked.version() > EDNS_VERSION) {
            // The client asks again in the version that the answer names (RFC 6891, 6.1.3).
            return Answer { code: ResponseCode::BADVERS, ..refused() };
        }
        if request.metadata.op_code != OpCode::Query {
            return Answer { code: ResponseCode::NotImp, ..refused() };
        }
        let transfer = matches!(info.query.query_type(), RecordType::AXFR | RecordType::IXFR);
        if !self.is_allowed(info.src.ip()) || info.query.query_class() != DNSClass::IN || transfer {
            return refused();
        }
        let mut name = Name::from(info.query.name());
        name.set_fqdn(true);
        let directory = self.feed.borrow().directory.clone();
        match directory {
            Some(directory) => answer(&directory, &self.zone, self.node, &name, info.query.query_type()),
            None if self.zone.contains(&name) => unknown(),
            None => refused(),
        }
    }
}

/// UDP comes by way of hickory's server.
#[async_trait]
impl RequestHandler for Shared {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut udp: R) -> ResponseInfo {
        let Ok(_permit) = self.0.permits.try_acquire() else {
            // An answer costs as much as what is being kept away; the client asks again.
            return unsent(request);
        };
        let reply = self.0.reply(request);
        let nothing = nothing_asked();
        let builder = MessageResponseBuilder::new(repeated(request).unwrap_or(&nothing), reply.edns.as_ref());
        let none: [&Record; 0] = [];
        let response = builder.build(reply.metadata, &reply.answer.answers, none, reply.answer.soa.as_ref(), none);
        match udp.send_response(response).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(client.addr = %request.src(), %error, "DNS answer not sent");
                unsent(request)
            }
        }
    }
}

/// The questions as an answer repeats them, byte for byte; none if a name in them points elsewhere in its message, where the answer
/// has something else.
fn repeated(request: &Request) -> Option<&Queries> {
    let queries = &request.queries;
    is_whole(queries.as_bytes(), queries.len()).then_some(queries)
}

fn is_whole(mut questions: &[u8], count: usize) -> bool {
    (0..count).all(|_| {
        while let [length @ 1..=LABEL_MAX, rest @ ..] = questions {
            questions = rest.get(usize::from(*length)..).unwrap_or_default();
        }
        let [0, rest @ ..] = questions else { return false };
        questions = rest.get(TYPE_AND_CLASS..).unwrap_or_default();
        true
    })
}

fn nothing_asked() -> Queries {
    Queries::read(&mut BinDecoder::new(&[]), 0).expect("no question takes no bytes")
}

/// What hickory wants to know of an answer that was not sent.
fn unsent(request: &Request) -> ResponseInfo {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.response_code = ResponseCode::ServFail;
    Header { metadata, counts: HeaderCounts::default() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_point_elsewhere_are_not_repeated() {
        let whole = b"\x06edge-1\x00\x00\x01\x00\x01";
        assert!(is_whole(whole, 1) && is_whole(&[], 0) && is_whole(&whole.repeat(2), 2));
        assert!(is_whole(b"\x00\x00\x01\x00\x01", 1), "the root");
        assert!(!is_whole(b"\xc0\x02\x00\x01\x00\x01", 1), "into the header, whose bits an answer changes");
        assert!(!is_whole(b"\x01x\xc0\x0c\x00\x01\x00\x01", 1), "behind a label");
        assert!(!is_whole(&[&whole[..], b"\xc0\x0c\x00\x01\x00\x01"].concat(), 2), "the second");
        assert!(!is_whole(b"\x3f too short", 1));
    }
}
