//! Names that are not ours, asked of other servers. What these answer goes back as it came, cut
//! answers included: their client asks again over TCP, and so do we.

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

use super::handler::{LEAST_PAYLOAD, UDP_PAYLOAD};
use super::tcp;

/// Questions under way at once. Each has a socket; more than this are a flood, or a server that
/// asks us what we ask it.
const CONCURRENT: usize = 512;
/// For the answer of one server. Clients wait for 5 s, of which two servers that are gone take 4.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A datagram that got lost is sent once more after this.
const AGAIN_MS: u64 = 800;
const DATAGRAMS: u8 = 2;
/// Answers over TCP have any length that it can say.
const LONGEST_ANSWER: u16 = u16::MAX;

/// Asks the servers, the one that answered last first.
pub(super) struct Forwarder {
    servers: Vec<SocketAddr>,
    /// The index of the one that answered last.
    good: AtomicUsize,
    permits: Semaphore,
}

impl Forwarder {
    /// `servers` are one or more.
    pub(super) fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            good: AtomicUsize::new(0),
            permits: Semaphore::new(CONCURRENT),
        }
    }

    /// What a server answers; nothing if none does, or if too many questions are under way. A
    /// refusal or failure is handed on only if no other server has something better.
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
                    let (server, reason) = (self.servers[index], format!("{error:#}"));
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

/// The same question under a number of its own, which nobody can guess.
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
        edns.set_max_payload(asked.max_payload().clamp(LEAST_PAYLOAD, UDP_PAYLOAD));
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
    tcp::write(&mut stream, &question.to_vec()?).await?;
    let answer = tcp::read(&mut stream, LONGEST_ANSWER)
        .await?
        .context("closed without an answer")?;
    let answer = DnsResponse::from_buffer(answer)?.into_message();
    ensure!(
        answer.metadata.id == question.metadata.id && answer.queries == question.queries,
        "the answer to another question"
    );
    Ok(answer)
}
