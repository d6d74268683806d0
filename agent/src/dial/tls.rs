//! TLS to a proxy: the settings for a join and for a joined agent, and handshakes whose errors say
//! what to do.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_api::busy;
use rustls::client::WantsClientCert;
use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, Error, PeerIncompatible,
    RootCertStore, WantsVerifier,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::crypto::provider;
use crate::dial::pin::{Pin, PinMismatch, PinVerifier};
use crate::identity::Identity;

/// Why a TLS connection to a proxy could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{0}")]
    Pin(Arc<dyn std::error::Error + Send + Sync>),
    #[error(
        "the proxy's certificate is not from a CA that this agent trusts: something in between \
         terminates TLS, or the proxy \
         has a new CA; then join again"
    )]
    UnknownAuthority,
    #[error(
        "the other end's certificate is not of a kind that proxies have: something in between \
         terminates TLS; have it let the proxy's address pass unopened"
    )]
    StrangeCertificate(#[source] Error),
    #[error(
        "the other end has no TLS 1.3: something in between terminates TLS, or this is not the \
         proxy's agent port"
    )]
    OldTls(#[source] Error),
    #[error("the proxy's certificate does not carry the name {0:?}: check --server-name")]
    WrongName(String),
    #[error(
        "the proxy's certificate is not valid at this time: check the clocks of this machine and \
         of the proxy"
    )]
    NotValidNow(#[source] Error),
    #[error(
        "the proxy refuses this agent's certificate: the node was removed or its certificate \
         ended; join again with a new token"
    )]
    Refused(#[source] Error),
    #[error("TLS ended early: is this the proxy's agent port?")]
    Ended(#[source] io::Error),
    #[error("the other end does not speak TLS: is this the proxy's agent port?")]
    NotTls(#[source] Error),
    #[error(
        "the other end speaks TLS, but not Culvert's protocol: is this the proxy's agent port?"
    )]
    NoCommonProtocol,
    #[error(
        "the proxy takes no new connections at the moment: too many there have not shown who they \
         are yet; its metric \
         culvert_proxy_agent_connections_total counts them"
    )]
    Busy {
        /// From when to when to come again, if the proxy says so.
        times: Option<[Duration; 2]>,
        source: Error,
    },
    #[error("TLS handshake")]
    Handshake(#[source] io::Error),
    #[error("use the agent's certificate")]
    Settings(#[source] Error),
}

impl TlsError {
    /// Classifies an error of a TLS stream.
    pub(crate) fn of(error: io::Error, server_name: &ServerName<'_>) -> Self {
        if let Some(inner) = error.get_ref()
            && let Some(tls) = inner.downcast_ref::<Error>()
        {
            return Self::of_tls(tls.clone(), error, server_name);
        }
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Ended(error)
        } else {
            Self::Handshake(error)
        }
    }

    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "only these have advice of their own"
    )]
    fn of_tls(tls: Error, error: io::Error, server_name: &ServerName<'_>) -> Self {
        use CertificateError as Bad;
        match &tls {
            Error::Other(other) if other.0.is::<PinMismatch>() => Self::Pin(Arc::clone(&other.0)),
            Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
                Self::UnknownAuthority
            }
            Error::InvalidCertificate(
                Bad::NotValidForName | Bad::NotValidForNameContext { .. },
            ) => Self::WrongName(server_name.to_str().into_owned()),
            Error::InvalidCertificate(
                Bad::Expired
                | Bad::ExpiredContext { .. }
                | Bad::NotValidYet
                | Bad::NotValidYetContext { .. },
            ) => Self::NotValidNow(tls),
            // Such as one of a CA itself, which appliances make for every host (CaUsedAsEndEntity).
            Error::InvalidCertificate(
                Bad::Other(_)
                | Bad::BadEncoding
                | Bad::UnhandledCriticalExtension
                | Bad::InvalidPurpose
                | Bad::InvalidPurposeContext { .. },
            ) => Self::StrangeCertificate(tls),
            Error::AlertReceived(AlertDescription::ProtocolVersion)
            | Error::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::SupportedVersionsExtensionRequired,
            ) => Self::OldTls(tls),
            Error::NoApplicationProtocol
            | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::NoCommonProtocol
            }
            Error::AlertReceived(AlertDescription::InternalError) => Self::Busy {
                times: None,
                source: tls,
            },
            Error::AlertReceived(AlertDescription::Unknown(description))
                if busy::times(*description).is_some() =>
            {
                Self::Busy {
                    times: busy::times(*description),
                    source: tls,
                }
            }
            Error::InvalidMessage(_) => Self::NotTls(tls),
            Error::AlertReceived(alert) if is_refusal(*alert) => Self::Refused(tls),
            _ => Self::Handshake(error),
        }
    }
}

fn is_refusal(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    [
        Alert::BadCertificate,
        Alert::UnsupportedCertificate,
        Alert::CertificateRevoked,
        Alert::CertificateExpired,
        Alert::CertificateUnknown,
        Alert::CertificateRequired,
        Alert::UnknownCA,
        Alert::AccessDenied,
    ]
    .contains(&alert)
}

fn tls13() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 suites")
}

/// Settings for a join: no client certificate yet; the pin identifies the authority.
pub(crate) fn pinned(pin: Pin, protocol: &[u8]) -> ClientConfig {
    let verifier = Arc::new(PinVerifier::new(pin, provider()));
    let builder: ConfigBuilder<ClientConfig, WantsClientCert> = tls13()
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    speaking(protocol, builder.with_no_client_auth())
}

/// Settings for an enrolment in a cluster: no client certificate yet; the authorities are known.
pub(crate) fn trusting(authorities: RootCertStore, protocol: &[u8]) -> ClientConfig {
    speaking(
        protocol,
        tls13()
            .with_root_certificates(authorities)
            .with_no_client_auth(),
    )
}

/// Settings for a joined agent: mutual TLS under the authorities that it trusts.
pub(crate) fn mutual(identity: &Identity, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
    let config = tls13()
        .with_root_certificates(Arc::clone(&identity.roots))
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(TlsError::Settings)?;
    Ok(speaking(protocol, config))
}

fn speaking(protocol: &[u8], mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![protocol.to_vec()];
    // With resumption the proxy would not check the certificate again. Tunnels are few, so a full
    // handshake costs little.
    config.resumption = rustls::client::Resumption::disabled();
    config
}

/// Runs the client's side of a handshake. The caller limits its time.
pub(crate) async fn handshake<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    config: ClientConfig,
    server_name: &ServerName<'static>,
) -> Result<TlsStream<T>, TlsError> {
    let protocol = config.alpn_protocols.first().cloned();
    let connected = TlsConnector::from(Arc::new(config))
        .connect(server_name.clone(), io)
        .await;
    let stream = connected.map_err(|error| TlsError::of(error, server_name))?;
    match stream.get_ref().1.alpn_protocol() {
        agreed if agreed == protocol.as_deref() => Ok(stream),
        _ => Err(TlsError::NoCommonProtocol),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::test_pki::Authority;

    #[tokio::test]
    async fn a_proxy_that_has_no_place_for_the_agent_is_said_to_be_busy() {
        let (near, mut far) = tokio::io::duplex(4 << 10);
        // The TLS alert `internal_error`, which a proxy without capacity sends.
        far.write_all(&[21, 3, 3, 0, 2, 2, 80]).await.unwrap();
        let config = trusting(RootCertStore::empty(), b"h2");
        let error = handshake(near, config, &"culvert-proxy".try_into().unwrap())
            .await
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .contains("no new connections at the moment"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_proxy_that_has_no_place_for_the_agent_says_when_to_come_again() {
        let (near, mut far) = tokio::io::duplex(4 << 10);
        let wait = Duration::from_secs(3);
        far.write_all(&[21, 3, 3, 0, 2, 2, busy::alert(wait)])
            .await
            .unwrap();
        let config = trusting(RootCertStore::empty(), b"h2");
        let error = handshake(near, config, &"culvert-proxy".try_into().unwrap())
            .await
            .err()
            .unwrap();
        let TlsError::Busy { times, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(times.unwrap()[0], wait);
    }

    /// The error of a handshake with a server that has `config`.
    async fn refused_by(config: rustls::ServerConfig, authority: &Authority) -> TlsError {
        let (near, far) = tokio::io::duplex(64 << 10);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate()).unwrap();
        let server_name = "culvert-proxy".try_into().unwrap();
        let (_accepted, refused) = tokio::join!(
            acceptor.accept(far),
            handshake(near, trusting(roots, b"h2"), &server_name)
        );
        refused.err().unwrap()
    }

    #[tokio::test]
    async fn an_appliance_that_opens_tls_is_told_from_a_proxy() {
        let authority = Authority::new("culvert");
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["culvert-proxy".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let self_signed = params.self_signed(&key).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![self_signed.der().clone()],
                key.serialize_der().try_into().unwrap(),
            )
            .unwrap();
        let error = refused_by(config, &authority).await;
        assert!(
            error.to_string().contains("in between terminates TLS"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_end_without_tls_1_3_is_told_from_a_proxy() {
        // A server with TLS 1.2 alone answers with the alert `protocol_version`.
        let (near, mut far) = tokio::io::duplex(4 << 10);
        far.write_all(&[21, 3, 3, 0, 2, 2, 70]).await.unwrap();
        let config = trusting(RootCertStore::empty(), b"h2");
        let error = handshake(near, config, &"culvert-proxy".try_into().unwrap())
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains("no TLS 1.3"), "{error}");
    }
}
