//! Spans: one for each connection of a client that has ended, sent to a collector over OTLP
//! (OpenTelemetry's protocol, gRPC). The spans are made from the record of the access log, so the
//! data path has no tracing of its own.
//!
//! A connection that ends never waits: the queue is bounded, and what finds it full is dropped and
//! counted. A batch that the collector cannot take now is sent again until it can.

mod collector;
mod span;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Backoff, Drain, Problem};
use culvert_proxy_core::instance::Instance;
use culvert_proxy_core::metrics::{Metrics, SpanOutcome};
use culvert_proxy_streams::ended::EndedStream;
use culvert_proxy_streams::live::Streams;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub(crate) use self::collector::CollectorUrl;
use self::collector::CollectorUrlParser;
use self::otlp::trace_service_client::TraceServiceClient;
use self::otlp::{Resource, Span};

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    clippy::use_self,
    clippy::wildcard_enum_match_arm,
    reason = "generated; documented in the .proto file"
)]
mod otlp {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}

/// Spans in one request. With the longest names it is some 300 kB; collectors take 4 MiB.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// How long the last spans may delay the end of the proxy.
const LAST: Duration = Duration::from_secs(3);

/// Where spans go.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Spans")]
pub struct SpanArgs {
    /// Sends a span for each connection that has ended to this collector, over OTLP/gRPC, such as
    /// http://127.0.0.1:4317. https verifies the collector's certificate. Off by default.
    #[arg(
        long,
        env = "CULVERT_OTLP_ENDPOINT",
        value_name = "URL",
        value_parser = CollectorUrlParser
    )]
    pub otlp_endpoint: Option<CollectorUrl>,

    /// The authorities of an https collector (PEM), read at the start. Default: those of the
    /// system, or of the environment variable SSL_CERT_FILE.
    #[arg(
        long,
        env = "CULVERT_OTLP_CA",
        value_name = "FILE",
        requires = "otlp_endpoint"
    )]
    pub(crate) otlp_ca: Option<PathBuf>,
}

/// Sends the spans.
pub struct SpanExporter {
    ended_rx: mpsc::Receiver<EndedStream>,
    collector: TraceServiceClient<Channel>,
    resource: Resource,
    metrics: Metrics,
    /// What is being sent.
    batch: Vec<Span>,
    backoff: Backoff,
    problem: Problem,
}

impl SpanExporter {
    /// Prepares the connection; it is made with the first span.
    ///
    /// # Errors
    /// The authorities cannot be read.
    pub fn new(
        url: &CollectorUrl,
        args: &SpanArgs,
        instance: &Instance,
        metrics: Metrics,
        ended_rx: mpsc::Receiver<EndedStream>,
    ) -> Result<Self> {
        Ok(Self {
            ended_rx,
            collector: TraceServiceClient::new(collector::channel(url, args.otlp_ca.as_deref())?),
            resource: span::resource(instance),
            metrics,
            batch: Vec::new(),
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            problem: Problem::default(),
        })
    }

    /// Sends until the drain has begun and no connection is left, then what is queued.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub fn run(self, streams: Streams, drain: Drain) -> BoxFuture<'static, Result<()>> {
        Box::pin(self.send_until(streams, drain))
    }

    async fn send_until(mut self, streams: Streams, drain: Drain) -> Result<()> {
        let send = async {
            loop {
                self.fill().await;
                self.deliver().await;
            }
        };
        tokio::select! {
            () = send => {}
            () = async {
                drain.begun().await;
                streams.idle().await;
            } => {}
        }
        if tokio::time::timeout(LAST, self.send_rest()).await.is_err() {
            let left = self.batch.len() + self.ended_rx.len();
            self.metrics.spans(SpanOutcome::Dropped, left);
        }
        Ok(())
    }

    /// Waits for a span, and for others that come with it.
    async fn fill(&mut self) {
        if self.batch.is_empty() {
            self.receive().await;
        }
        let more = async {
            while self.batch.len() < BATCH {
                self.receive().await;
            }
        };
        // The batch is full, or the time is over.
        let _elapsed = tokio::time::timeout(LINGER, more).await;
    }

    async fn receive(&mut self) {
        match self.ended_rx.recv().await {
            Some(ended) => self.batch.push(span::span(ended)),
            // The streams hold the sender for as long as the proxy runs.
            None => std::future::pending().await,
        }
    }

    /// Sends the batch until the collector has taken or refused it.
    async fn deliver(&mut self) {
        while let Err(reason) = self.send().await {
            if let Some(reason) = self.problem.record(Some(reason)) {
                tracing::warn!(reason, "the collector does not take spans; trying again");
            }
            tokio::time::sleep(self.backoff.wait()).await;
        }
    }

    /// Sends each batch that is left once.
    async fn send_rest(&mut self) {
        self.ended_rx.close();
        loop {
            while self.batch.len() < BATCH
                && let Ok(ended) = self.ended_rx.try_recv()
            {
                self.batch.push(span::span(ended));
            }
            if self.batch.is_empty() {
                return;
            }
            if self.send().await.is_err() {
                self.metrics.spans(SpanOutcome::Dropped, self.batch.len());
                self.batch.clear();
            }
        }
    }

    /// Sends the batch once. An error says why it has to be sent again.
    async fn send(&mut self) -> Result<(), String> {
        let request = span::request(self.resource.clone(), self.batch.clone());
        let (refused, reason) = match self.collector.export(request).await {
            Ok(answer) => span::count_refused(answer.into_inner(), self.batch.len()),
            Err(status) if is_passing(&status) => return Err(collector::reason(&status)),
            Err(status) => (self.batch.len(), Some(collector::reason(&status))),
        };
        let sent = self.batch.len() - refused;
        self.metrics.spans(SpanOutcome::Sent, sent);
        self.metrics.spans(SpanOutcome::Refused, refused);
        self.batch.clear();
        self.backoff.reset();
        if let Some(reason) = self.problem.record(reason) {
            tracing::warn!(reason, "the collector refuses spans");
        }
        Ok(())
    }
}

/// Whether the same request can succeed later, as OTLP's specification has it.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            // What tonic says when the connection fails during the request.
            | Code::Unknown
    )
}
