//! The functions that the fuzz targets (`fuzz/`) call: the parsers of what clients, strangers and
//! operators write. The result is text, so that a target can parse it again.

use std::net::SocketAddr;

use culvert_daemon::chain;

use crate::clients::connect::request;
use crate::forward::Forward;
use crate::clients::http;
use crate::clients::names::head::{Head, HeadReader};
use crate::clients::names::host;
use crate::directory::{self, Destination};
use crate::operators::migrate;
use crate::sockets::proxy_protocol::header::{Header, MAX_REST, PREFIX, Source};
use crate::trust::authority::ProvenKey;
use crate::trust::identity::{Binding, Leaf};
use crate::trust::tokens::{self, TokenText};

/// The longest header of the PROXY protocol that is read, in bytes.
pub const PROXY_HEADER_MAX: usize = PREFIX + MAX_REST;
/// The longest head of a request or of a connection to a name-routed port that is read, in bytes.
pub const HEAD_MAX: usize = http::HEAD_MAX;

/// The destination in a CONNECT request's head and the head's length; `None`: more bytes are
/// necessary.
///
/// # Errors
///
/// The reason why it cannot be served.
pub fn connect_request(bytes: &[u8]) -> Result<Option<(String, usize)>, String> {
    let parsed = request::parse(bytes).map_err(|bad| chain(&bad))?;
    let Some((asked, length)) = parsed else {
        return Ok(None);
    };
    let destination = asked.destination(None).map_err(|bad| chain(&bad))?;
    Ok(Some((destination.to_string(), length)))
}

/// The name in the first head of a connection to a name-routed port that arrives in pieces of so many
/// bytes; `None`: more bytes are necessary.
///
/// # Errors
///
/// The reason why it names no node.
pub fn name_head(bytes: &[u8], piece: usize) -> Result<Option<String>, String> {
    let mut reader = HeadReader::default();
    let mut end = 0;
    loop {
        end = (end + piece.max(1)).min(bytes.len());
        match reader.read(&bytes[..end]).map_err(|bad| chain(&bad))? {
            Some(Head::Tls(name)) => return Ok(Some(name)),
            Some(Head::Http) => return request_name(bytes).map(Some),
            None if end == bytes.len() => return Ok(None),
            None => {}
        }
    }
}

/// The name in a request, as hyper reads it.
fn request_name(bytes: &[u8]) -> Result<String, String> {
    let mut headers = [httparse::EMPTY_HEADER; http::HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(bytes).map_err(|error| error.to_string())?;
    let mut request = ::http::Request::builder()
        .method(parsed.method.unwrap_or_default())
        .uri(parsed.path.unwrap_or_default());
    for header in parsed.headers {
        request = request.header(header.name, header.value);
    }
    let request = request.body(()).map_err(|error| error.to_string())?;
    host::named(&request).map_err(|bad| chain(&bad))
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

/// An entry of `--forward` or ConfigMap culvert-forwards in one form.
///
/// # Errors
///
/// The reason why it is not used.
pub fn forward(text: &str) -> Result<String, String> {
    let forward: Forward = text.parse().map_err(|error| chain(&error))?;
    Ok(forward.to_string())
}

/// The destinations behind a node that a label's value names, and the problems of those that are
/// left out.
#[must_use]
pub fn behind_label(value: &str) -> (Vec<SocketAddr>, Vec<String>) {
    let (destinations, problems) = crate::cluster::behind_label(value);
    (destinations.into_iter().collect(), problems)
}

/// What `migrate` prints for a file of another tunnel, `yurttunnel`, `superedge` or `konnectivity`.
///
/// # Errors
///
/// The reason why it cannot be read.
pub fn migrated(from: &str, text: &str) -> Result<String, String> {
    migrate::migrated(from, text)
}
