//! Between hickory's server and the answers: who may ask, how many at once, and what is counted.

use std::net::IpAddr;

use async_trait::async_trait;
use hickory_proto::op::{Edns, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use ipnet::IpNet;
use tokio::sync::{Semaphore, watch};

use super::Zone;
use super::answer::{Answer, answer, canonical, is_ours_in_any_case, refused, unknown};
use crate::config::NodeIps;
use crate::directory::Feed;
use crate::metrics::DnsMetrics;

/// Questions in progress; each takes microseconds, so more are a flood.
const CONCURRENT: usize = 512;
/// What we send over UDP at most, by DNS Flag Day 2020: larger datagrams get fragmented and lost.
const UDP_PAYLOAD: u16 = 1232;

/// Answers hickory's requests.
pub(super) struct Handler {
    zone: Zone,
    clients: Vec<IpNet>,
    node: NodeIps,
    feed: watch::Receiver<Feed>,
    permits: Semaphore,
    metrics: DnsMetrics,
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

    fn is_allowed(&self, client: IpAddr) -> bool {
        let client = canonical(client);
        self.clients.iter().any(|range| range.contains(&client))
    }

    fn answer(&self, request: &Request) -> Answer {
        let Ok(info) = request.request_info() else {
            return Answer { code: ResponseCode::FormErr, ..refused() };
        };
        if request.metadata.op_code != OpCode::Query {
            return Answer { code: ResponseCode::NotImp, ..refused() };
        }
        let transfer = matches!(info.query.query_type(), RecordType::AXFR | RecordType::IXFR);
        if !self.is_allowed(info.src.ip()) || info.query.query_class() != DNSClass::IN || transfer {
            return refused();
        }
        let mut name: Name = Name::from(info.query.name());
        name.set_fqdn(true);
        let directory = self.feed.borrow().directory.clone();
        match directory {
            Some(directory) => answer(&directory, &self.zone, self.node, &name, info.query.query_type()),
            None if is_ours_in_any_case(&self.zone, &name) => unknown(),
            None => refused(),
        }
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut respond: R) -> ResponseInfo {
        let permit = self.permits.try_acquire();
        let answer = if permit.is_ok() { self.answer(request) } else { refused() };
        self.metrics.answered(answer.code);
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = answer.code;
        metadata.authoritative = matches!(answer.code, ResponseCode::NoError | ResponseCode::NXDomain);
        let edns = request.edns.as_ref().map(|asked| {
            let mut edns = Edns::new();
            edns.set_max_payload(asked.max_payload().clamp(512, UDP_PAYLOAD)).set_version(0);
            edns
        });
        let none: [&Record; 0] = [];
        let builder = MessageResponseBuilder::new(&request.queries, edns.as_ref());
        let response = builder.build(metadata, &answer.answers, none, answer.soa.as_ref(), none);
        match respond.send_response(response).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(client.addr = %request.src(), %error, "DNS answer not sent");
                failed(metadata)
            }
        }
    }
}

/// What hickory wants to know of an answer that could not be sent.
fn failed(mut metadata: Metadata) -> ResponseInfo {
    metadata.response_code = ResponseCode::ServFail;
    hickory_proto::op::Header { metadata, counts: hickory_proto::op::HeaderCounts::default() }.into()
}
