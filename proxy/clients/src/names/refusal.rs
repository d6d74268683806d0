//! The answer to a refused client: a TLS alert, or an HTTP answer. It reads the directory, and is
//! pure otherwise.

use culvert_proxy_core::directory::{Destination, Directory};
use culvert_proxy_streams::error::RouteError;
use http::StatusCode;

use super::bad_head::BadHead;
use super::head::Protocol;
use crate::http::response::Refusal;

/// Names that an answer lists.
const LISTED: usize = 10;

/// Fatal alerts of TLS (RFC 8446), by their number.
#[derive(Clone, Copy)]
enum Alert {
    AccessDenied = 49,
    DecodeError = 50,
    InternalError = 80,
    UnrecognizedName = 112,
}

impl Alert {
    /// A record in plain text, as before any handshake.
    fn record(self) -> Vec<u8> {
        vec![0x15, 3, 1, 0, 2, 2, self as u8]
    }
}

/// The answer to a first head that cannot be served.
pub(super) fn bad_head(protocol: Protocol, bad: &BadHead) -> Vec<u8> {
    match (protocol, bad) {
        (Protocol::Tls, BadHead::NoServerName) => Alert::UnrecognizedName.record(),
        (Protocol::Tls, _) => Alert::DecodeError.record(),
        (Protocol::Http, BadHead::Http2) => http2_goaway(&bad.to_string()),
        (Protocol::Http, _) => bad_request(bad).render(),
    }
}

/// The answer to a request that cannot be served.
pub(super) fn bad_request(bad: &BadHead) -> Refusal {
    let status = match bad {
        BadHead::NoHost | BadHead::OtherPort { .. } => return misdirected(bad.to_string()),
        BadHead::TimedOut => StatusCode::REQUEST_TIMEOUT,
        BadHead::Connect => StatusCode::METHOD_NOT_ALLOWED,
        BadHead::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        BadHead::NotHttp(_)
        | BadHead::NoName
        | BadHead::SeveralHosts
        | BadHead::Scheme
        | BadHead::Http2
        | BadHead::ProxyHeader
        | BadHead::Hello(_)
        | BadHead::NoServerName => StatusCode::BAD_REQUEST,
    };
    Refusal::new(status, "http_request_error", bad.to_string())
}

/// The answer to a request whose name leads to no edge node.
pub(super) fn unknown(
    error: &RouteError,
    directory: &Directory,
    destination: &Destination,
) -> Refusal {
    let hint = match directory.cloud(destination) {
        Some((node, address)) => format!("{node} is a cloud node: dial {address} itself"),
        None => known_names(directory),
    };
    misdirected(format!("{error}; {hint}"))
}

/// The answer to a TLS client whose name leads to no edge node.
pub(super) fn unknown_server() -> Vec<u8> {
    Alert::UnrecognizedName.record()
}

fn misdirected(details: String) -> Refusal {
    let error = "destination_not_found";
    Refusal::new(StatusCode::MISDIRECTED_REQUEST, error, details)
}

/// The names that would do.
fn known_names(directory: &Directory) -> String {
    let names = directory.first_names(LISTED);
    let more = directory.census().total().saturating_sub(names.len());
    let mut text: Vec<String> = names.iter().map(ToString::to_string).collect();
    if more > 0 {
        text.push(format!("{more} more"));
    }
    let zone = directory.zone();
    format!(
        "known names, alone or followed by .{zone}: {}",
        text.join(", ")
    )
}

/// The answer to a TLS client whose node is known, and to which no connection was made.
pub(super) fn not_connected(error: &RouteError) -> Vec<u8> {
    let alert = if Refusal::from(error).is_forbidden() {
        Alert::AccessDenied
    } else {
        Alert::InternalError
    };
    alert.record()
}

/// The server's preface, and the end of the connection: HTTP_1_1_REQUIRED (RFC 9113).
fn http2_goaway(reason: &str) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: u8 = 7;
    const HTTP_1_1_REQUIRED: u8 = 13;
    // The length has three bytes; the reason is a short line.
    let [high, low] = u16::try_from(8 + reason.len())
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    let mut answer = SETTINGS.to_vec();
    answer.extend([0, high, low, GOAWAY, 0, 0, 0, 0, 0]);
    answer.extend([0, 0, 0, 0, 0, 0, 0, HTTP_1_1_REQUIRED]);
    answer.extend(reason.as_bytes());
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(folder: &std::path::Path) -> Directory {
        let nodes: Vec<_> = (1..=12)
            .map(|number| format!("edge-{number}").parse().unwrap())
            .collect();
        Directory::for_tests(folder, &nodes)
    }

    #[test]
    fn a_wrong_name_is_told_the_right_ones() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory(folder.path());
        let destination = Destination::Name("edge-99".into(), 9100);
        let error = RouteError::from(directory.resolve(&destination).unwrap_err());
        let answer = unknown(&error, &directory, &destination);
        let answer = String::from_utf8(answer.render()).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 421 Misdirected Request\r\n"),
            "{answer}"
        );
        for part in [
            "no edge node is named \"edge-99\"",
            "alone or followed by .edge.internal: edge-1, edge-10,",
            ", 2 more\n",
        ] {
            assert!(answer.contains(part), "{part:?} in {answer}");
        }
        assert_eq!(unknown_server(), [0x15, 3, 1, 0, 2, 2, 0x70]);
    }

    #[test]
    fn each_bad_head_has_an_end_of_its_protocol() {
        let status = |bad: &BadHead| {
            let answer = bad_head(Protocol::Http, bad);
            String::from_utf8_lossy(&answer[..12]).into_owned()
        };
        assert_eq!(status(&BadHead::NoHost), "HTTP/1.1 421");
        assert_eq!(status(&BadHead::TimedOut), "HTTP/1.1 408");
        assert_eq!(status(&BadHead::TooLong), "HTTP/1.1 431");
        assert_eq!(status(&BadHead::Connect), "HTTP/1.1 405");
        assert_eq!(status(&BadHead::SeveralHosts), "HTTP/1.1 400");
        assert_eq!(bad_head(Protocol::Tls, &BadHead::NoServerName)[6], 112);
        assert_eq!(bad_head(Protocol::Tls, &BadHead::TooLong)[6], 50);
        let goaway = bad_head(Protocol::Http, &BadHead::Http2);
        let length = usize::from(u16::from_be_bytes([goaway[10], goaway[11]]));
        assert_eq!(goaway.len(), 9 + 9 + length, "two frames");
    }
}
