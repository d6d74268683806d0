//! The connection to the collector: plain TCP, or TLS with the process's one crypto provider.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use culvert_daemon::chain;
use culvert_proxy_trust::handshake::provider;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// The time for a connection with its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for a request. OTLP's default.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that fails silently is noticed after twice that time.
const PING_AFTER: Duration = Duration::from_secs(10);

/// The URL of a collector: `http` or `https`, a host, and a port. Without a port it is that of the
/// scheme.
#[derive(Clone, Debug)]
pub struct CollectorUrl(Uri);

/// Not the URL of a collector.
#[derive(Debug, Error)]
#[error("not a URL such as http://HOST:4317 or https://HOST:4317, without a path")]
pub struct InvalidCollectorUrl;

impl FromStr for CollectorUrl {
    type Err = InvalidCollectorUrl;

    fn from_str(text: &str) -> Result<Self, InvalidCollectorUrl> {
        let url: Uri = text.parse().map_err(|_| InvalidCollectorUrl)?;
        let Some(authority) = url.authority() else {
            return Err(InvalidCollectorUrl);
        };
        let is_known = matches!(url.scheme_str(), Some("http" | "https"));
        let has_path = !matches!(url.path(), "" | "/") || url.query().is_some();
        let has_login = authority.as_str().contains('@');
        if is_known && !has_path && !has_login && !authority.host().is_empty() {
            Ok(Self(url))
        } else {
            Err(InvalidCollectorUrl)
        }
    }
}

/// Reads the flag. The error does not show the value, which may have a password.
#[derive(Clone, Debug)]
pub(crate) struct CollectorUrlParser;

impl TypedValueParser for CollectorUrlParser {
    type Value = CollectorUrl;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<CollectorUrl, clap::Error> {
        let text = value.to_str().unwrap_or_default();
        text.parse().map_err(|invalid: InvalidCollectorUrl| {
            let message = format!("--otlp-endpoint: {invalid}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl CollectorUrl {
    fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }

    /// Host, without the brackets of an IPv6 address, and port.
    fn address(&self) -> (String, u16) {
        let host = self.0.host().unwrap_or_default();
        let port = if self.is_tls() { 443 } else { 80 };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host.to_owned(), self.0.port_u16().unwrap_or(port))
    }
}

/// A channel that connects when it is used.
pub(super) fn channel(url: &CollectorUrl, ca: Option<&Path>) -> Result<Channel> {
    let mut tls = None;
    if url.is_tls() {
        tls = Some(tls_connector(ca)?);
    }
    ensure!(
        tls.is_some() || ca.is_none(),
        "--otlp-ca is for an https collector, and --otlp-endpoint is {url}"
    );
    let address = url.address();
    // tonic's own TLS would take the `https` connections to peers for its own.
    let connector = tower::service_fn(move |_: Uri| {
        let address = address.clone();
        let tls = tls.clone();
        async move { connect(address, tls).await.map(TokioIo::new) }
    });
    Ok(Endpoint::from(url.0.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .http2_keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_AFTER)
        .connect_with_connector_lazy(connector))
}

type Connection = Either<TcpStream, Box<tokio_rustls::client::TlsStream<TcpStream>>>;

async fn connect((host, port): (String, u16), tls: Option<TlsConnector>) -> io::Result<Connection> {
    let socket = TcpStream::connect((host.as_str(), port)).await?;
    socket.set_nodelay(true)?;
    let Some(tls) = tls else {
        return Ok(Either::Left(socket));
    };
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let secured = tls.connect(name, socket).await?;
    Ok(Either::Right(Box::new(secured)))
}

fn tls_connector(ca: Option<&Path>) -> Result<TlsConnector> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .context("choose TLS versions")?
        .with_root_certificates(roots(ca)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config).into())
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore> {
    let certificates;
    let source;
    match ca {
        Some(file) => {
            certificates = read_certificates(file)
                .with_context(|| format!("--otlp-ca: read {}", file.display()))?;
            source = file.display().to_string();
        }
        None => {
            certificates = rustls_native_certs::load_native_certs().certs;
            source = "the system: give --otlp-ca FILE".to_owned();
        }
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    ensure!(
        !roots.is_empty(),
        "--otlp-endpoint: no certificate of an authority in {source}"
    );
    Ok(roots)
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_file_iter(file)?.collect()
}

/// Why a request failed, with its causes.
pub(super) fn reason(status: &Status) -> String {
    let source = std::error::Error::source(status);
    match source {
        Some(source) => format!("{}: {}", status.message(), chain(source)),
        None => format!("{}: {}", status.code(), status.message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_scheme_and_a_host_and_no_more() {
        for text in [
            "http://127.0.0.1:4317",
            "https://otel.example:4317/",
            "https://otel.example",
            "http://[fd00::1]:4317",
        ] {
            assert!(text.parse::<CollectorUrl>().is_ok(), "{text}");
        }
        for text in [
            "",
            "127.0.0.1:4317",
            "ftp://otel.example:4317",
            "http://otel.example:4317/v1/traces",
            "http://otel.example:4317/?a=b",
            "http://name:secret@otel.example:4317",
        ] {
            assert!(text.parse::<CollectorUrl>().is_err(), "{text}");
        }
        let url: CollectorUrl = "http://[fd00::1]:4317".parse().unwrap();
        assert_eq!(url.address(), ("fd00::1".to_owned(), 4317));
    }

    #[test]
    fn without_a_port_it_is_that_of_the_scheme() {
        let url: CollectorUrl = "https://otel.example".parse().unwrap();
        assert_eq!(url.address(), ("otel.example".to_owned(), 443));
    }
}
