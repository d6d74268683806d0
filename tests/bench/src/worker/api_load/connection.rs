//! Connections to an API server or a hub, with one request at a time, so that what is measured is the
//! other end: HTTP/1.1, which all of them speak, or HTTP/2, which kubelet and client-go speak.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::PATIENCE;

/// Whom to ask, and as whom.
#[derive(Clone)]
pub(super) struct Target {
    /// `IP:PORT`.
    address: String,
    /// `None`: plain HTTP.
    tls: Option<Arc<ClientConfig>>,
    is_http2: bool,
    token: Option<String>,
}

/// A target as `cargo xtask bench hub` writes it, in JSON.
#[derive(Deserialize)]
struct TargetFile {
    address: String,
    authority: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    token: Option<String>,
    #[serde(default)]
    http2: bool,
}

impl Target {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let file: TargetFile = serde_json::from_slice(&text)?;
        let tls = file.authority.as_deref().map(|authority| {
            tls(
                authority,
                file.certificate.as_deref().zip(file.key.as_deref()),
                if file.http2 { &[b"h2"] } else { &[] },
            )
        });
        Ok(Self {
            address: file.address,
            tls: tls.transpose()?,
            is_http2: file.http2,
            token: file.token,
        })
    }

    pub(super) async fn connect(&self) -> Result<Connection> {
        let socket = TcpStream::connect(&self.address)
            .await
            .with_context(|| format!("connect to {}", self.address))?;
        socket.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let host = self.address.rsplit_once(':').context("no port")?.0;
                let name = ServerName::try_from(host.to_owned())?;
                Box::new(
                    TlsConnector::from(tls.clone())
                        .connect(name, socket)
                        .await?,
                )
            }
        };
        let mut tasks = JoinSet::new();
        // What the drivers report, the requests report too.
        let sender = if self.is_http2 {
            let io = TokioIo::new(stream);
            let (sender, driver) = http2::handshake(TokioExecutor::new(), io).await?;
            tasks.spawn(async { driver.await.unwrap_or_default() });
            Sender::Http2(sender)
        } else {
            let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
            tasks.spawn(async { driver.await.unwrap_or_default() });
            Sender::Http1(sender)
        };
        Ok(Connection {
            sender,
            address: self.address.clone(),
            token: self.token.clone(),
            _tasks: tasks,
        })
    }
}

fn tls(
    authority: &Path,
    identity: Option<(&Path, &Path)>,
    protocols: &[&[u8]],
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority)? {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain =
                CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// A connection; it ends with this.
pub(super) struct Connection {
    sender: Sender,
    address: String,
    token: Option<String>,
    _tasks: JoinSet<()>,
}

impl Connection {
    /// Sends a request and returns the head of the answer.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
    ) -> Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .header(header::USER_AGENT, "kubelet/bench")
            .header(header::ACCEPT, "application/json");
        request = match &self.sender {
            Sender::Http1(_) => request.uri(path).header(header::HOST, "bench"),
            Sender::Http2(_) => request.uri(format!("https://{}{path}", self.address)),
        };
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((content_type, _)) = body {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let body = body.map(|(_, bytes)| bytes).unwrap_or_default();
        Ok(self.sender.send(request.body(body.into())?).await?)
    }

    /// The status and the whole body, however long it takes.
    pub(super) async fn get(&mut self, path: &str) -> Result<(StatusCode, Bytes)> {
        let answer = self.send(Method::GET, path, None).await?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }

    /// Sends an object; fails if it is not accepted.
    pub(super) async fn write(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        object: &Value,
    ) -> Result<()> {
        let body = Bytes::from(object.to_string());
        let writing = async {
            let answer = self.send(method, path, Some((content_type, body))).await?;
            let status = answer.status();
            let said = answer.into_body().collect().await?.to_bytes();
            ensure!(
                status.is_success(),
                "{path}: {status}: {}",
                String::from_utf8_lossy(&said)
            );
            Ok(())
        };
        timeout(PATIENCE, writing)
            .await
            .with_context(|| format!("{path}: no answer"))?
    }

    /// Lists, and opens a watch from there.
    pub(super) async fn watch(mut self, path: &str) -> Result<Watch> {
        let opening = async {
            let (status, body) = self.get(path).await?;
            ensure!(status == StatusCode::OK, "{path}: {status}");
            let list: Value = serde_json::from_slice(&body)?;
            let version = list["metadata"]["resourceVersion"]
                .as_str()
                .context("a list without a version")?;
            let path =
                format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
            let answer = self.send(Method::GET, &path, None).await?;
            ensure!(
                answer.status() == StatusCode::OK,
                "{path}: {}",
                answer.status()
            );
            anyhow::Ok(answer.into_body())
        };
        let body = timeout(PATIENCE, opening).await.context("no watch")??;
        Ok(Watch {
            body,
            read: Vec::new(),
            _connection: self,
        })
    }
}

/// An open watch.
pub(super) struct Watch {
    body: Incoming,
    read: Vec<u8>,
    _connection: Connection,
}

impl Watch {
    /// The next event; an error at its end.
    pub(super) async fn next(&mut self) -> Result<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line)?);
            }
            let Some(frame) = self.body.frame().await else {
                bail!("the watch ended")
            };
            if let Ok(bytes) = frame?.into_data() {
                self.read.extend_from_slice(&bytes);
            }
        }
    }
}

/// Asks once on a connection of its own, for as long as [`PATIENCE`] at most.
pub(super) async fn ask(target: &Target, path: &str, patience: Duration) -> Result<StatusCode> {
    let asking = async { anyhow::Ok(target.connect().await?.get(path).await?.0) };
    timeout(patience, asking).await.context("no answer")?
}
