//! HTTP that ends at the proxy: requests of clients, each passed on to the server that it names,
//! and connections that become tunnels.

pub(crate) mod backend;
pub(crate) mod bridge;
mod expectation;
pub(crate) mod opened;
pub(crate) mod response;
pub(crate) mod server;

use std::io;
use std::os::fd::AsFd;

use bytes::Bytes;
use culvert_tunnel::Socket;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::net::TcpStream;

/// The maximum length of a head, in bytes.
pub(crate) const HEAD_MAX: usize = 16 << 10;
/// The maximum number of headers in a head. It is hyper's.
pub(crate) const HEADERS_MAX: usize = 100;

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The host and port of a URL's authority, without a user and a password before them.
pub(crate) fn without_user(authority: &str) -> &str {
    match authority.rsplit_once('@') {
        Some((_, host)) => host,
        None => authority,
    }
}

/// A second handle of a socket that something else reads and writes. It shows the socket's failure,
/// and sets what closing the socket sends.
pub(crate) fn watch(client: &TcpStream) -> io::Result<Socket> {
    let second = std::net::TcpStream::from(client.as_fd().try_clone_to_owned()?);
    Ok(TcpStream::from_std(second)?.into())
}
