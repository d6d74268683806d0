//! What can be wrong with the proxy's certificates and authorities.

use std::time::Duration;

use culvert_api::NodeName;
use culvert_proxy_core::state::StateError;

use crate::authority::AuthorityError;
use crate::identity::PROXY_ROLE;

/// The reason why trust cannot be set up, or a certificate cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The state directory is not usable.
    #[error(transparent)]
    State(#[from] StateError),
    /// The authority is not usable.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// No TLS can be set up with the certificate.
    #[error("use the certificate in {what}")]
    Tls {
        /// What it has.
        what: String,
        /// The cause.
        source: rustls::Error,
    },
    /// The authorities of clients are not usable.
    #[error("use the authorities of client certificates in {what}")]
    Verifier {
        /// What it has.
        what: String,
        /// The cause.
        source: rustls::server::VerifierBuilderError,
    },
    /// The certificate is not for the name that agents verify.
    #[error(
        "the certificate in {file} is not for the name {name:?}: give a name that it has with \
         --server-name"
    )]
    ServerName {
        /// The file.
        file: String,
        /// `--server-name`.
        name: String,
    },
    /// `--server-name` is no name.
    #[error("{0:?} is not a server name: give a DNS name with --server-name")]
    ServerNameText(String),
    /// `--certificate-lifetime` is too short or too long.
    #[error(
        "a certificate lifetime of {} s is not possible: --certificate-lifetime takes 1s to 3650d",
        .0.as_secs()
    )]
    Lifetime(Duration),
    /// The authority of CONNECT clients is the agents' too.
    #[error(
        "{file} has an authority of the agents: any edge node could dial any other with its own \
         certificate. Give CONNECT clients an authority of their own with --connect-client-ca"
    )]
    SharedAuthority {
        /// The file.
        file: String,
    },
    /// The Node of a certificate is not known yet.
    #[error(
        "the cluster's Node {node} is not known well enough to bind a certificate to it: its UID \
         is missing"
    )]
    NoUid {
        /// The node.
        node: NodeName,
    },
    /// The ready certificate does not say that it is a proxy's.
    #[error(
        "the certificate in {what} is not one that other proxies accept: it needs the URI \
         {PROXY_ROLE} among its subject alternative names, and the extended key usages serverAuth \
         and clientAuth; or start the proxy without --peer"
    )]
    NoProxyRole {
        /// What it has.
        what: String,
    },
    /// This proxy has no authority that could sign.
    #[error(
        "this proxy uses ready certificates (--tls-cert, --tls-key, --agent-ca) and cannot make \
         any: give the agent its certificate with --cert, --key and --ca, or start the proxy with \
         --ca-cert and --ca-key"
    )]
    NoAuthority,
}
