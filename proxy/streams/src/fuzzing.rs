//! The function that the fuzz target of PROXY headers (`fuzz/`) calls.

use std::net::SocketAddr;

use culvert_daemon::chain;

use crate::sockets::proxy_protocol::header::{Header, MAX_REST, PREFIX, Source};

/// The longest header of the PROXY protocol that is read, in bytes.
pub const PROXY_HEADER_MAX: usize = PREFIX + MAX_REST;

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
    let header = Header::parse_prefix(prefix).map_err(|error| chain(&error))?;
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
