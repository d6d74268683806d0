//! The functions that the fuzz targets (`fuzz/`) call: the parsers of what clients, strangers and
//! operators write. The result is text, so that a target can parse it again.

use std::net::SocketAddr;

use culvert_daemon::chain;

use crate::clients::connect::request;
use crate::directory::{self, Destination};
use crate::sockets::proxy_protocol::header::{Header, MAX_REST, PREFIX, Source};
use crate::trust::authority::ProvenKey;
use crate::trust::identity::{Binding, Leaf};
use crate::trust::tokens::{self, TokenText};

/// The longest header of the PROXY protocol that is read, in bytes.
pub const PROXY_HEADER_MAX: usize = PREFIX + MAX_REST;
/// The longest head of a CONNECT request that is read, in bytes.
pub const HEAD_MAX: usize = request::HEAD_MAX;

/// The destination in a CONNECT request's head and the head's length; `None`: more bytes are
/// necessary.
///
/// # Errors
///
/// The reason why it cannot be served.
pub fn connect_request(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    let parsed = request::parse(bytes).map_err(|bad| chain(&bad))?;
    Ok(parsed.map(|(destination, length)| (destination.to_string(), length)))
}

/// A destination in its displayed form.
///
/// # Errors
///
/// The reason why it is not one.
pub fn destination(text: &str) -> Result<String, String> {
    text.parse::<Destination>()
        .map(|destination| destination.to_string())
        .map_err(|error| chain(&error))
}

/// A join token as the join command shows it.
///
/// # Errors
///
/// The reason why it is not one, without any of its secret.
pub fn join_token(text: &str) -> Result<String, String> {
    text.parse::<TokenText>()
        .map(|token| token.reveal())
        .map_err(|error| chain(&error))
}

/// The file of join tokens as it would be written again.
///
/// # Errors
///
/// The reason why the proxy would not start with it.
pub fn token_file(text: &str) -> Result<String, String> {
    tokens::rewritten(text).map_err(|error| chain(&error))
}

/// The directory file with every node in one form.
///
/// # Errors
///
/// The reason why it is not used.
pub fn directory_file(text: &str) -> Result<String, String> {
    directory::rewritten(text).map_err(|error| chain(&error))
}

/// The node that a certificate (DER) names, and what it is bound to; `None`: it is bound to
/// nothing.
///
/// # Errors
///
/// The reason why it identifies nobody as a node.
pub fn certificate(der: &[u8]) -> Result<(String, Option<String>), String> {
    let credential = Leaf::read(&der.into())
        .and_then(Leaf::credential)
        .map_err(|error| chain(&error))?;
    Ok((
        credential.node.to_string(),
        credential.binding.map(|binding| binding.to_string()),
    ))
}

/// The binding in a URI of a certificate, in one form; `None`: no binding.
#[must_use]
pub fn binding(uri: &str) -> Option<String> {
    Binding::from_uri(uri).map(|binding| binding.to_string())
}

/// The digest of the key in a certificate signing request (PKCS#10, DER).
///
/// # Errors
///
/// The reason why it is refused.
pub fn signing_request(der: &[u8]) -> Result<[u8; 32], String> {
    ProvenKey::from_csr(der)
        .map(|key| key.digest())
        .map_err(|error| chain(&error))
}

/// The address in a header of the PROXY protocol, and the header's length; without an address it is
/// the balancer's own connection. `None`: more bytes are necessary.
///
/// # Errors
///
/// The reason why it is refused.
pub fn proxy_header(bytes: &[u8]) -> Result<Option<(Option<SocketAddr>, usize)>, String> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let header = Header::begin(prefix).map_err(|error| chain(&error))?;
    let Some(rest) = rest.get(..header.rest()) else {
        return Ok(None);
    };
    let source = header.source(rest).map_err(|error| chain(&error))?;
    let client = match source {
        Source::Client(client) => Some(client),
        Source::Balancer => None,
    };
    Ok(Some((client, PREFIX + rest.len())))
}
