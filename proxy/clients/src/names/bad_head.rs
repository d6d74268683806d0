//! Why the first bytes of a connection name no node.

use crate::http::HEAD_MAX;

/// The reason why a head names no node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadHead {
    #[error("the head is longer than {HEAD_MAX} bytes")]
    TooLong,
    #[error("the head took too long")]
    TimedOut,
    #[error("not a TLS ClientHello: {0}")]
    Hello(InvalidHello),
    #[error(
        "the TLS ClientHello names no server (SNI): dial the node by its name, or set the server \
         name of the client's TLS settings"
    )]
    NoServerName,
    #[error("not an HTTP/1.1 request: {0}")]
    NotHttp(httparse::Error),
    #[error("the request has no Host: dial the node by its name, or set the header Host to it")]
    NoHost,
    #[error("the request's Host is not a name that a node could have")]
    NoName,
    #[error("the request has more than one Host")]
    SeveralHosts,
    #[error("only URLs that begin with http:// are served here")]
    Scheme,
    #[error(
        "the URL asks for port {asked} of the node, and this port of the proxy stands for port \
         {served} of every node: send it to the one for {asked}"
    )]
    OtherPort { asked: u16, served: u16 },
    #[error("HTTP/2 without TLS is not served here: use HTTP/1.1, or TLS, which passes unchanged")]
    Http2,
    #[error(
        "a header of the PROXY protocol, which is not read here: let the balancer send none, and \
         see to it that only its own clients reach it"
    )]
    ProxyHeader,
    #[error(
        "CONNECT is not served here: send the request itself to this port, or CONNECT to the \
         proxy's --connect-listen"
    )]
    Connect,
}

/// Why the bytes are no ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidHello {
    #[error("a record of another kind")]
    Record,
    #[error("another message than a ClientHello")]
    Message,
    #[error("a part is longer than the whole")]
    Length,
    #[error("the server name is not a DNS name")]
    Name,
}

impl From<InvalidHello> for BadHead {
    fn from(invalid: InvalidHello) -> Self {
        Self::Hello(invalid)
    }
}
