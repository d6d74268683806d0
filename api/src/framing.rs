//! A CONNECT on the proxy's Unix socket whose bytes go over HTTP/2. A Unix socket has no reset: there
//! a connection that was cut would look like one that ended.

/// The header of the request, and of the answer of a proxy that agrees.
pub const FRAMING_HEADER: &str = "culvert-framing";
/// Its value. After the answer the client begins HTTP/2, in which it sends one CONNECT.
pub const FRAMING_HTTP2: &str = "h2";
