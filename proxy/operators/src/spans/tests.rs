use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::ended::EndedStreams;
use culvert_proxy_streams::error::RouteError;
use culvert_proxy_streams::live::Frontend;
use culvert_proxy_trust::handshake::provider;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response};

use super::otlp::StatusCode;
use super::otlp::any_value::Value;
use super::otlp::trace_service_server::{TraceService, TraceServiceServer};
use super::otlp::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use super::*;

const DEADLINE: Duration = Duration::from_secs(20);

/// A collector that passes on what it gets. It has no time for the first `busy` requests.
struct Collector {
    got_tx: mpsc::Sender<ExportTraceServiceRequest>,
    busy: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let less = |busy: usize| busy.checked_sub(1);
        let set = Ordering::Relaxed;
        let fetch = Ordering::Relaxed;
        if self.busy.fetch_update(set, fetch, less).is_ok() {
            return Err(Status::unavailable("come again"));
        }
        self.got_tx.send(request.into_inner()).await.unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A proxy's streams, with an exporter to a collector.
struct Lab {
    tasks: JoinSet<()>,
    streams: Streams,
    metrics: Metrics,
    exporter: SpanExporter,
    drain: Drain,
}

impl Lab {
    fn new(url: &str, ca: Option<PathBuf>) -> Self {
        let metrics = Metrics::default();
        let (ended, ended_rx) = EndedStreams::channel(metrics.clone());
        let url: CollectorUrl = url.parse().unwrap();
        let args = SpanArgs {
            otlp_endpoint: Some(url.clone()),
            otlp_ca: ca,
        };
        let instance = "f00d".into();
        let exporter = SpanExporter::new(&url, &args, &instance, metrics.clone(), ended_rx);
        Self {
            tasks: JoinSet::new(),
            streams: Streams::new(metrics.clone(), Some(ended)),
            metrics,
            exporter: exporter.unwrap(),
            drain: Drain::default(),
        }
    }

    /// One connection of a client, from its begin to its end.
    fn stream(
        &self,
        number: u64,
        end: impl FnOnce(&mut culvert_proxy_streams::live::StreamRecord),
    ) {
        let destination = Destination::Name("edge-1".to_owned(), 9100);
        let client = "10.1.2.3:40000".to_owned();
        let mut record = self
            .streams
            .start_record(number, Frontend::Ebpf, client, destination);
        record.set_node(&"edge-1".parse().unwrap());
        end(&mut record);
    }

    /// Exports in the background.
    fn start(self) -> (JoinSet<()>, Streams, Metrics, Drain) {
        let Self {
            mut tasks,
            streams,
            metrics,
            exporter,
            drain,
        } = self;
        let run = exporter.run(streams.clone(), drain.clone());
        tasks.spawn(async move { run.await.unwrap() });
        (tasks, streams, metrics, drain)
    }
}

/// Serves a collector.
async fn collector(
    busy: usize,
) -> (
    JoinSet<()>,
    SocketAddr,
    mpsc::Receiver<ExportTraceServiceRequest>,
) {
    let (got_tx, got_rx) = mpsc::channel(64);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let collector = Collector {
        got_tx,
        busy: Arc::new(busy.into()),
    };
    let mut tasks = JoinSet::new();
    let service = TraceServiceServer::new(collector);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (accepted, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let server = http2::Builder::new(TokioExecutor::new());
            connections.spawn(server.serve_connection(TokioIo::new(accepted), service));
        }
    });
    (tasks, address, got_rx)
}

async fn next(got_rx: &mut mpsc::Receiver<ExportTraceServiceRequest>) -> Vec<Span> {
    let request = tokio::time::timeout(DEADLINE, got_rx.recv()).await;
    let request = request.expect("a request in time").unwrap();
    let all = request.resource_spans.into_iter();
    all.flat_map(|of| of.scope_spans)
        .flat_map(|of| of.spans)
        .collect()
}

fn value(span: &Span, key: &str) -> Option<Value> {
    let attribute = span.attributes.iter().find(|one| one.key == key)?;
    attribute.value.clone()?.value
}

fn text(span: &Span, key: &str) -> Option<String> {
    let value = value(span, key)?;
    let Value::StringValue(text) = value else {
        panic!("{key} is {value:?}");
    };
    Some(text)
}

#[tokio::test]
async fn a_finished_stream_is_one_span_with_the_words_of_the_access_line() {
    let (_server, address, mut got_rx) = collector(0).await;
    let lab = Lab::new(&format!("http://{address}"), None);
    lab.stream(7, |record| {
        record.set_dial_time(Duration::from_millis(250));
        record.record_end(&Ok(()));
    });
    let _running = lab.start();
    let spans = next(&mut got_rx).await;
    let [span] = spans.as_slice() else {
        panic!("{spans:?}");
    };
    assert_eq!(value(span, "stream"), Some(Value::IntValue(7)));
    assert_eq!(value(span, "dial_s"), Some(Value::DoubleValue(0.25)));
    assert_eq!(value(span, "bytes_to_client"), Some(Value::IntValue(0)));
    let texts = [
        "node",
        "client.addr",
        "original_dst",
        "frontend",
        "mechanism",
        "outcome",
    ];
    assert_eq!(
        texts.map(|key| text(span, key).unwrap()),
        [
            "edge-1",
            "10.1.2.3:40000",
            "edge-1:9100",
            "ebpf",
            "tunnel",
            "finished"
        ]
    );
    assert_eq!((&span.status, text(span, "reason")), (&None, None));
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert!(
        span.start_time_unix_nano <= span.end_time_unix_nano,
        "{span:?}"
    );
}

#[tokio::test]
async fn a_stream_that_failed_is_a_span_with_the_reason_as_its_status() {
    let (_server, address, mut got_rx) = collector(0).await;
    let lab = Lab::new(&format!("http://{address}"), None);
    let node = "edge-1".parse().unwrap();
    lab.stream(8, |record| {
        record.record_refusal(&RouteError::Offline { node })
    });
    let _running = lab.start();
    let spans = next(&mut got_rx).await;
    let status = spans[0].status.clone().unwrap();
    assert_eq!(status.code, i32::from(StatusCode::Error));
    assert!(status.message.contains("edge-1 is offline"), "{status:?}");
    assert_eq!(text(&spans[0], "outcome").as_deref(), Some("offline"));
    assert_eq!(value(&spans[0], "dial_s"), None);
}

#[test]
fn a_span_has_the_bytes_of_both_directions_and_the_time_of_the_stream() {
    let ended = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(100);
    let stream = culvert_proxy_streams::view::StreamView {
        stream: 1,
        frontend: "forward",
        client: "10.1.2.3:1".to_owned(),
        claimed_user: None,
        original_dst: "edge-1:22".to_owned(),
        node: None,
        path: "direct",
        age_seconds: 2.5,
        bytes_to_backend: 17,
        bytes_to_client: 4_000_000_000_000,
        tunnel: None,
        peer: None,
        moves: 0,
        move_reason: None,
        last_bytes: None,
        answer_is_due: false,
    };
    let span = span::span(EndedStream {
        stream,
        ended,
        dial: None,
        outcome: "reset",
        reason: None,
    });
    assert_eq!(value(&span, "bytes_to_backend"), Some(Value::IntValue(17)));
    let to_client = value(&span, "bytes_to_client");
    assert_eq!(to_client, Some(Value::IntValue(4_000_000_000_000)));
    let times = (span.start_time_unix_nano, span.end_time_unix_nano);
    assert_eq!(times, (97_500_000_000, 100_000_000_000));
}

#[tokio::test]
async fn a_busy_collector_gets_the_batch_again_and_each_span_once() {
    let (_server, address, mut got_rx) = collector(2).await;
    let lab = Lab::new(&format!("http://{address}"), None);
    for number in 0..3 {
        lab.stream(number, |record| record.record_end(&Ok(())));
    }
    let (_running, _, metrics, _) = lab.start();
    let spans = next(&mut got_rx).await;
    assert_eq!(spans.len(), 3);
    let deadline = Instant::now() + DEADLINE;
    while metrics.spans_so_far(SpanOutcome::Sent) < 3 {
        assert!(Instant::now() < deadline, "the answer is not counted");
        tokio::task::yield_now().await;
    }
    assert_eq!(metrics.spans_so_far(SpanOutcome::Sent), 3);
    assert_eq!(metrics.spans_so_far(SpanOutcome::Refused), 0);
}

#[tokio::test]
async fn an_unreachable_collector_delays_no_stream_and_what_is_too_much_is_counted() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let lab = Lab::new(&format!("http://{address}"), None);
    // None of these waits: a stream that ends is not a future.
    for number in 0..10_000 {
        lab.stream(number, |record| record.record_end(&Ok(())));
    }
    assert_eq!(
        lab.metrics.spans_so_far(SpanOutcome::Dropped),
        10_000 - 4096
    );
    let (mut running, _, metrics, drain) = lab.start();
    drain.start();
    let ended = tokio::time::timeout(LAST + DEADLINE, running.join_next()).await;
    ended.expect("the exporter ends in time").unwrap().unwrap();
    assert_eq!(metrics.spans_so_far(SpanOutcome::Dropped), 10_000);
}

#[tokio::test]
async fn the_last_spans_are_sent_before_the_proxy_ends() {
    let (_server, address, mut got_rx) = collector(0).await;
    let lab = Lab::new(&format!("http://{address}"), None);
    for number in 0..600 {
        lab.stream(number, |record| record.record_end(&Ok(())));
    }
    lab.drain.start();
    let (mut running, _, metrics, _) = lab.start();
    let ended = tokio::time::timeout(DEADLINE, running.join_next()).await;
    ended.expect("the exporter ends in time").unwrap().unwrap();
    let first = next(&mut got_rx).await.len();
    assert_eq!(first + next(&mut got_rx).await.len(), 600);
    assert_eq!(metrics.spans_so_far(SpanOutcome::Sent), 600);
}

/// Ends TLS in front of `plain`, with a new certificate for 127.0.0.1. Returns the address and the
/// certificate (PEM).
async fn tls_in_front_of(plain: SocketAddr, tasks: &mut JoinSet<()>) -> (SocketAddr, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (accepted, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                // A client that does not trust the certificate ends the handshake.
                let mut client = acceptor.accept(accepted).await?;
                let mut server = TcpStream::connect(plain).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    (address, made.cert.pem())
}

#[tokio::test]
async fn an_https_collector_gets_spans_if_its_certificate_is_trusted() {
    let (mut tasks, plain, mut got_rx) = collector(0).await;
    let (address, pem) = tls_in_front_of(plain, &mut tasks).await;
    let mut ca = tempfile::NamedTempFile::new().unwrap();
    ca.write_all(pem.as_bytes()).unwrap();
    let url = format!("https://{address}");
    let lab = Lab::new(&url, Some(ca.path().to_owned()));
    lab.stream(1, |record| record.record_end(&Ok(())));
    let _running = lab.start();
    assert_eq!(next(&mut got_rx).await.len(), 1);

    let (_, other) = tls_in_front_of(plain, &mut tasks).await;
    let mut foreign = tempfile::NamedTempFile::new().unwrap();
    foreign.write_all(other.as_bytes()).unwrap();
    let mut lab = Lab::new(&url, Some(foreign.path().to_owned()));
    lab.stream(2, |record| record.record_end(&Ok(())));
    lab.exporter.fill().await;
    let reason = lab.exporter.send().await.unwrap_err();
    assert!(reason.contains("certificate"), "{reason}");
}

#[test]
fn a_login_in_the_url_of_a_collector_is_refused_and_not_shown() {
    #[derive(Debug, clap::Parser)]
    struct Args {
        #[command(flatten)]
        spans: SpanArgs,
    }
    let given = [
        "proxy",
        "--otlp-endpoint",
        "http://user:S3cret@collector:4317",
    ];
    let refused = <Args as clap::Parser>::try_parse_from(given).unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("--otlp-endpoint") && !refused.contains("S3cret"),
        "{refused}"
    );
    let given = ["proxy", "--otlp-endpoint", "http://collector:4317"];
    let args = <Args as clap::Parser>::try_parse_from(given).unwrap();
    assert!(args.spans.otlp_endpoint.is_some());
}
