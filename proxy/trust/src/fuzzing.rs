//! The functions that the fuzz targets (`fuzz/`) call: the parsers of what strangers and agents
//! show, and of the file of tokens. The result is text, so that a target can parse it again.

use culvert_daemon::chain;

use crate::authority::ProvenKey;
use crate::identity::{Binding, Leaf};
use crate::tokens::{self, TokenText};

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

/// The node that a certificate (DER) names, and what it is bound to; `None`: it is bound to
/// nothing.
///
/// # Errors
///
/// The reason why it does not identify a node.
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
