//! The functions that the fuzz targets (`fuzz/`) call: the parsers of what clients write. The result
//! is text, so that a target can parse it again.

use culvert_daemon::chain;

use crate::connect::request;
use crate::http;
use crate::names::head::{Head, HeadReader};
use crate::names::host;

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
    Ok(parsed.map(|(asked, length)| (asked.target().to_string(), length)))
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
    let ports = host::MeantPorts {
        of_nodes: 9100,
        own: 7451,
    };
    host::named(&request, ports).map_err(|bad| chain(&bad))
}
