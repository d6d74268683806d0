//! CONNECT at a forward proxy: asks for a connection, and says why there is none.

use std::fmt;
use std::io;

use culvert_api::HostPort;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ForwardProxy;

/// Limit of the head of an answer. Proxies of companies send cookies and policies.
const HEAD_MAX: usize = 64 << 10;
/// Limit of a text of the proxy in an error.
const SHOWN_MAX: usize = 100;
/// The only scheme of credentials that is supported.
const BASIC: &str = "basic";

/// Why a forward proxy made no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectFailure {
    /// The connection to it failed.
    #[error("ask it")]
    Io(#[from] io::Error),
    /// It said nothing.
    #[error("it ended the connection before it answered: is it an HTTP proxy?")]
    Ended,
    /// It said something else.
    #[error("its answer is not HTTP: is it an HTTP proxy?")]
    NotHttp,
    /// It said too much.
    #[error("the head of its answer is longer than {} KiB", HEAD_MAX >> 10)]
    TooLong,
    /// Its answer is not a success.
    #[error("it answers {status}: {advice}")]
    Refused {
        /// The status and words of its answer.
        status: ConnectStatus,
        /// For the operator.
        advice: ConnectAdvice,
    },
}

/// The status of an answer, with the proxy's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectStatus {
    code: u16,
    reason: String,
}

impl fmt::Display for ConnectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, reason } = self;
        if reason.is_empty() {
            write!(f, "{code}")
        } else {
            write!(f, "{code} {reason}")
        }
    }
}

/// What to do about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectAdvice {
    /// A redirection, and the host that it leads to.
    Portal(Option<String>),
    /// Credentials are wanted, and none were sent.
    NoCredentials,
    /// The credentials that were sent are wrong.
    WrongCredentials,
    /// Only other schemes than Basic are offered.
    OtherSchemes(Vec<String>),
    /// CONNECT to this port is not allowed.
    Forbidden(u16),
    /// It does not reach the host.
    Unreachable,
    /// Its operator knows.
    Other,
}

impl fmt::Display for ConnectAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Portal(Some(host)) => write!(
                f,
                "it sends clients to {host}, perhaps a captive portal where a user has to log in"
            ),
            Self::Portal(None) => f.write_str("perhaps a captive portal"),
            Self::NoCredentials => {
                f.write_str("it wants credentials: write USER:PASSWORD@ before its host")
            }
            Self::WrongCredentials => {
                f.write_str("it refuses the user and password of HTTPS_PROXY")
            }
            Self::OtherSchemes(schemes) => write!(
                f,
                "it offers {}, and Basic only is supported: have it let this host pass without \
                 credentials, or use a local proxy that speaks its scheme",
                schemes.join(", ")
            ),
            Self::Forbidden(port) => write!(
                f,
                "it must allow CONNECT to port {port}; or name the host in NO_PROXY"
            ),
            Self::Unreachable => f.write_str("it cannot reach that address"),
            Self::Other => f.write_str("its operator knows the reason"),
        }
    }
}

/// Asks `forward`, at the other end of `stream`, for a connection to `proxy`. The caller limits the
/// time.
///
/// # Errors
/// There is no connection. No text has a part of the credentials, even if the proxy repeats them.
pub async fn connect_through<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    forward: &ForwardProxy,
    proxy: &HostPort,
) -> Result<(), ConnectFailure> {
    let mut request = format!("CONNECT {proxy} HTTP/1.1\r\nHost: {proxy}\r\n");
    if let Some(authorization) = forward.authorization() {
        request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    loop {
        let head = read_head(stream).await?;
        // RFC 9110, 5.5: bytes above 0x7f are allowed, of an encoding that nothing names.
        let head = String::from_utf8_lossy(&head);
        let head = Head::parse(&head).ok_or(ConnectFailure::NotHttp)?;
        match head.code {
            100..=199 => {}
            200..=299 => return Ok(()),
            _ => return Err(head.refusal(forward, proxy.port)),
        }
    }
}

/// Reads an answer up to its empty line, and nothing after it: that is the connection's.
async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, ConnectFailure> {
    let mut head = Vec::new();
    while !(head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n")) {
        let byte = match stream.read_u8().await {
            Ok(byte) => byte,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ConnectFailure::Ended);
            }
            Err(error) => return Err(error.into()),
        };
        head.push(byte);
        if head.len() > HEAD_MAX {
            return Err(ConnectFailure::TooLong);
        }
        if head.len() == HTTP.len() && head != HTTP {
            return Err(ConnectFailure::NotHttp);
        }
    }
    Ok(head)
}

/// How every answer begins.
const HTTP: &[u8] = b"HTTP/";

/// The head of an answer.
struct Head<'a> {
    code: u16,
    reason: &'a str,
    headers: Vec<(&'a str, &'a str)>,
}

impl<'a> Head<'a> {
    fn parse(head: &'a str) -> Option<Self> {
        let mut lines = head.lines();
        let (_version, status) = lines.next()?.split_once(' ')?;
        let status = status.trim();
        let (code, reason) = status.split_once(' ').unwrap_or((status, ""));
        let code = code.parse().ok()?;
        if !(100..600).contains(&code) {
            return None;
        }
        let mut headers = Vec::new();
        for line in lines {
            if let Some((name, value)) = line.split_once(':') {
                headers.push((name.trim(), value.trim()));
            }
        }
        Some(Self {
            code,
            reason: reason.trim(),
            headers,
        })
    }

    fn values(&self, name: &str) -> Vec<&'a str> {
        let mut values = Vec::new();
        for (found, value) in &self.headers {
            if found.eq_ignore_ascii_case(name) {
                values.push(*value);
            }
        }
        values
    }

    fn refusal(&self, forward: &ForwardProxy, port: u16) -> ConnectFailure {
        let advice = match self.code {
            300..=399 => ConnectAdvice::Portal(self.redirected_to(forward)),
            407 => self.credentials(forward),
            403 | 405 => ConnectAdvice::Forbidden(port),
            502..=504 => ConnectAdvice::Unreachable,
            _ => ConnectAdvice::Other,
        };
        let status = ConnectStatus {
            code: self.code,
            reason: printable(self.reason, forward),
        };
        ConnectFailure::Refused { status, advice }
    }

    fn redirected_to(&self, forward: &ForwardProxy) -> Option<String> {
        let location = *self.values("location").first()?;
        let (_scheme, rest) = location.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let host = authority.rsplit('@').next()?;
        let host = printable(host, forward);
        if host.is_empty() { None } else { Some(host) }
    }

    fn credentials(&self, forward: &ForwardProxy) -> ConnectAdvice {
        let mut schemes = Vec::new();
        for offers in self.values("proxy-authenticate") {
            for scheme in offered_schemes(offers) {
                schemes.push(printable(scheme, forward));
            }
        }
        schemes.retain(|scheme| !scheme.is_empty());
        let has_basic = schemes
            .iter()
            .any(|scheme| scheme.eq_ignore_ascii_case(BASIC));
        if !has_basic && !schemes.is_empty() {
            ConnectAdvice::OtherSchemes(schemes)
        } else if forward.authorization().is_some() {
            ConnectAdvice::WrongCredentials
        } else {
            ConnectAdvice::NoCredentials
        }
    }
}

/// The schemes of a list of challenges (RFC 9110, 11.6.1): `Negotiate, Basic realm="a, b", x=1`
/// offers two.
fn offered_schemes(list: &str) -> Vec<&str> {
    let mut schemes = Vec::new();
    let mut is_quoted = false;
    let mut is_escaped = false;
    let elements = list.split(|letter| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match letter {
            '\\' if is_quoted => is_escaped = !was_escaped,
            '"' if !was_escaped => is_quoted = !is_quoted,
            _ => {}
        }
        letter == ',' && !is_quoted
    });
    for element in elements {
        let (word, rest) = match element.trim().split_once([' ', '\t']) {
            Some((word, rest)) => (word, rest.trim_start()),
            None => (element.trim(), ""),
        };
        // `realm="a"` and `realm = "a"` belong to the scheme before them.
        if !word.is_empty() && !word.contains('=') && !rest.starts_with('=') {
            schemes.push(word);
        }
    }
    schemes
}

/// A text of the proxy, for an error: short, printable, and without the credentials.
fn printable(text: &str, forward: &ForwardProxy) -> String {
    if forward.is_repeated_in(text) {
        return String::new();
    }
    text.chars()
        .filter(|letter| letter.is_ascii_graphic() || *letter == ' ')
        .take(SHOWN_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "http://gate:3128";
    const WITH_PASSWORD: &str = "http://aladdin:opensesame@gate:3128";

    /// The request, and the outcome of the answer `answer`, which the proxy ends.
    async fn asked(forward: &str, answer: &str) -> (String, Result<(), String>) {
        asked_bytes(forward, answer.as_bytes()).await
    }

    async fn asked_bytes(forward: &str, answer: &[u8]) -> (String, Result<(), String>) {
        let forward = ForwardProxy::parse(forward).unwrap();
        let (mut near, mut far) = tokio::io::duplex(128 << 10);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let proxy = "proxy.example:7400".parse().unwrap();
        let outcome = connect_through(&mut near, &forward, &proxy).await;
        let outcome = outcome.map_err(|error| error.to_string());
        drop(near);
        let mut request = String::new();
        far.read_to_string(&mut request).await.unwrap();
        (request, outcome)
    }

    async fn refusal(forward: &str, answer: &str) -> String {
        asked(forward, answer).await.1.unwrap_err()
    }

    #[tokio::test]
    async fn a_connection_is_asked_for_with_the_credentials() {
        let (request, outcome) = asked(WITH_PASSWORD, "HTTP/1.1 200 OK\r\n\r\n").await;
        outcome.unwrap();
        assert_eq!(
            request,
            "CONNECT proxy.example:7400 HTTP/1.1\r\nHost: proxy.example:7400\r\n\
             Proxy-Authorization: Basic YWxhZGRpbjpvcGVuc2VzYW1l\r\n\r\n"
        );
    }

    #[tokio::test]
    async fn every_answer_that_opens_a_connection_is_taken() {
        for answer in [
            "HTTP/1.0 200 Connection established\r\nVia: a\r\n\r\n",
            "HTTP/1.1 200\r\n\r\n",
            "HTTP/1.1 204 No Content\n\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            &format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(12 << 10)),
        ] {
            asked(OPEN, answer).await.1.unwrap();
        }
    }

    #[tokio::test]
    async fn what_follows_the_answer_is_the_connections() {
        let forward = ForwardProxy::parse(OPEN).unwrap();
        let (mut near, mut far) = tokio::io::duplex(1 << 10);
        far.write_all(b"HTTP/1.1 200 OK\r\n\r\nearly")
            .await
            .unwrap();
        let proxy = "proxy.example:7400".parse().unwrap();
        connect_through(&mut near, &forward, &proxy).await.unwrap();
        let mut early = [0; 5];
        near.read_exact(&mut early).await.unwrap();
        assert_eq!(&early, b"early");
    }

    #[tokio::test]
    async fn a_refusal_has_its_status_and_what_to_do() {
        for (forward, answer, expected) in [
            (
                OPEN,
                "HTTP/1.1 302 Found\r\nLocation: https://login.hotel.example/a?b\r\n\r\n",
                vec!["302 Found", "login.hotel.example", "captive portal"],
            ),
            (
                OPEN,
                "HTTP/1.1 403 Forbidden by policy\r\n\r\n",
                vec!["403 Forbidden by policy", "port 7400", "NO_PROXY"],
            ),
            (
                WITH_PASSWORD,
                "HTTP/1.1 407 x\r\nProxy-Authenticate: NTLM\r\nproxy-authenticate: Negotiate abc\r\n\r\n",
                vec!["407", "NTLM, Negotiate", "Basic only"],
            ),
            (
                OPEN,
                "HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm=\"a\"\r\n\r\n",
                vec!["407", "USER:PASSWORD@"],
            ),
            (
                WITH_PASSWORD,
                "HTTP/1.1 407 x\r\nProxy-Authenticate: basic realm=\"a\"\r\n\r\n",
                vec!["407", "refuses the user and password"],
            ),
            (OPEN, "HTTP/1.1 502 Bad Gateway\r\n\r\n", vec!["502"]),
            (
                OPEN,
                "HTTP/1.1 429 Slow down\r\n\r\n",
                vec!["429 Slow down"],
            ),
            (OPEN, "SSH-2.0-x\r\n", vec!["not HTTP"]),
            (OPEN, "HTTP/1.1 two hundred\r\n\r\n", vec!["not HTTP"]),
            (OPEN, "HTTP/1.1 200 OK\r\nVia:", vec!["before it answered"]),
        ] {
            let text = refusal(forward, answer).await;
            for part in expected {
                assert!(text.contains(part), "{answer:?}: {text}");
            }
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(HEAD_MAX));
        let text = refusal(OPEN, &long).await;
        assert!(text.contains("longer than"), "{text}");
    }

    #[tokio::test]
    async fn bytes_of_another_encoding_are_no_reason_to_give_up() {
        let latin1 = b"HTTP/1.1 200 connect\xe9\r\nVia: 1.1 r\xe9seau\r\n\r\n";
        asked_bytes(OPEN, latin1).await.1.unwrap();
        let refused = b"HTTP/1.1 403 Acc\xe8s refus\xe9\r\nX: \xff\r\n\r\n";
        let text = asked_bytes(OPEN, refused).await.1.unwrap_err();
        assert!(
            text.contains("403 Acc") && text.contains("NO_PROXY"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn one_line_may_offer_several_schemes() {
        for (offers, expected) in [
            ("Negotiate, NTLM, Basic realm=\"x\"", "refuses the user"),
            (
                "Digest realm=\"a, Basic\", nonce=\"b\\\", Basic \"",
                "Digest, and Basic only",
            ),
            (
                "Bearer realm = \"a\" , error=\"b\",basic",
                "refuses the user",
            ),
            (
                ", Negotiate YWJj==,, NTLM",
                "Negotiate, NTLM, and Basic only",
            ),
        ] {
            let answer = format!("HTTP/1.1 407 x\r\nProxy-Authenticate: {offers}\r\n\r\n");
            let text = refusal(WITH_PASSWORD, &answer).await;
            assert!(text.contains(expected), "{offers}: {text}");
        }
    }

    #[tokio::test]
    async fn a_proxy_that_repeats_the_password_does_not_bring_it_into_the_log() {
        for answer in [
            "HTTP/1.1 403 no aladdin:opensesame\r\n\r\n",
            "HTTP/1.1 302 x\r\nLocation: http://opensesame.example/\r\n\r\n",
            "HTTP/1.1 302 x\r\nLocation: http://aladdin:opensesame@portal/\r\n\r\n",
            "HTTP/1.1 407 x\r\nProxy-Authenticate: opensesame\r\n\r\n",
            "HTTP/1.1 400 YWxhZGRpbjpvcGVuc2VzYW1l\r\n\r\n",
        ] {
            let text = refusal(WITH_PASSWORD, answer).await;
            for secret in ["aladdin", "opensesame", "YWxhZGRpb"] {
                assert!(!text.contains(secret), "{answer:?}: {text}");
            }
        }
    }
}
