//! Forwards questions about other names to other servers. Their answers are passed on unchanged,
//! truncated ones included: the client then asks again over TCP, and the question is forwarded over
//! TCP.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use hickory_proto::op::{DnsRequest, DnsRequestOptions, DnsResponse, Edns, Message, ResponseCode};
use hickory_server::net::runtime::TokioRuntimeProvider;
use hickory_server::net::udp::UdpClientStream;
use hickory_server::net::xfer::{DnsRequestSender, Protocol};
use hickory_server::server::Request;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::framing;
use super::{MIN_PAYLOAD, UDP_PAYLOAD};

/// Questions in progress at once. Each has a socket; more than this are a flood, or a loop with a
/// server that forwards to this one.
const CONCURRENT: usize = 512;
/// Timeout for one server's answer. Clients wait for 5 s; two servers that are down take 4.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A datagram that got lost is sent once more after this.
const AGAIN_MS: u64 = 800;
const DATAGRAMS: u8 = 2;
/// An answer over TCP may have any length that fits its length field.
const LONGEST_ANSWER: u16 = u16::MAX;

/// Asks the servers, first the one that answered last.
pub(super) struct Forwarder {
    servers: Vec<SocketAddr>,
    /// The index of the one that answered last.
    good: AtomicUsize,
    permits: Semaphore,
}

impl Forwarder {
    /// `servers` must not be empty.
    pub(super) fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            good: AtomicUsize::new(0),
            permits: Semaphore::new(CONCURRENT),
        }
    }

    /// The answer of a server; `None` if no server answers, or if too many questions are in
    /// progress. A refusal or failure is passed on only if no other server has a better answer.
    pub(super) async fn ask(&self, request: &Request, protocol: Protocol) -> Option<Message> {
        let _permit = self.permits.try_acquire().ok()?;
        let question = question(request);
        let mut second_best = None;
        let first = self.good.load(Ordering::Relaxed);
        for index in (first..self.servers.len()).chain(0..first) {
            let asked = timeout(
                TIMEOUT,
                ask(self.servers[index], question.clone(), protocol),
            )
            .await;
            match asked.context("no answer in time").flatten() {
                Ok(answer) if has_failed(answer.metadata.response_code) => {
                    second_best = Some(answer)
                }
                Ok(answer) => {
                    self.good.store(index, Ordering::Relaxed);
                    return Some(answer);
                }
                Err(error) => {
                    let server = self.servers[index];
                    let reason = format!("{error:#}");
                    tracing::debug!(
                        %server,
                        reason,
                        "question not answered by the server that it was forwarded to"
                    );
                }
            }
        }
        second_best
    }
}

fn has_failed(code: ResponseCode) -> bool {
    matches!(
        code,
        ResponseCode::Refused | ResponseCode::ServFail | ResponseCode::NotImp
    )
}

/// The same question with a new random id.
fn question(request: &Request) -> Message {
    let mut question = Message::query();
    question.metadata.recursion_desired = request.metadata.recursion_desired;
    question.metadata.checking_disabled = request.metadata.checking_disabled;
    question.metadata.authentic_data = request.metadata.authentic_data;
    question.queries = request
        .queries
        .queries()
        .iter()
        .map(|query| query.original().clone())
        .collect();
    question.edns = request.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(asked.max_payload().clamp(MIN_PAYLOAD, UDP_PAYLOAD));
        edns.set_dnssec_ok(asked.flags().dnssec_ok);
        edns
    });
    question
}

async fn ask(server: SocketAddr, question: Message, protocol: Protocol) -> Result<Message> {
    if protocol == Protocol::Udp {
        ask_udp(server, question).await
    } else {
        ask_tcp(server, question).await
    }
}

async fn ask_udp(server: SocketAddr, question: Message) -> Result<Message> {
    let client = UdpClientStream::builder(server, TokioRuntimeProvider::new())
        .with_timeout(Some(TIMEOUT))
        .with_os_port_selection(true)
        .with_max_retries(DATAGRAMS)
        .with_retry_interval_floor(AGAIN_MS);
    let request = DnsRequest::new(question, DnsRequestOptions::default());
    let answer = client
        .build()
        .send_message(request)
        .next()
        .await
        .context("no answer")??;
    Ok(answer.into_message())
}

async fn ask_tcp(server: SocketAddr, question: Message) -> Result<Message> {
    let mut stream = TcpStream::connect(server).await.context("connect")?;
    framing::write(&mut stream, &question.to_vec()?).await?;
    let answer = framing::read(&mut stream, LONGEST_ANSWER)
        .await?
        .context("closed without an answer")?;
    let answer = DnsResponse::from_buffer(answer)?.into_message();
    ensure!(
        answer.metadata.id == question.metadata.id && answer.queries == question.queries,
        "the answer to another question"
    );
    Ok(answer)
}
