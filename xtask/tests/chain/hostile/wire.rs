//! HTTP/2 by hand over TLS, for ends of a tunnel that keep to no rule.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use prost::Message;
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
/// A type that HTTP/2 gives to nothing.
pub(super) const UNKNOWN: u8 = 0xfa;

/// Of SETTINGS and PING.
const ACK: u8 = 1;
/// Of DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
/// Of HEADERS and what continues them.
pub(super) const END_HEADERS: u8 = 4;

/// The largest window there is.
pub(super) const WINDOW_MAX: u32 = (1 << 31) - 1;
/// What the window of a connection is before anybody widens it.
pub(super) const WINDOW_DEFAULT: u32 = (1 << 16) - 1;

/// What a client of HTTP/2 says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes that a flood writes at once.
const BLOCK: usize = 16 << 10;

/// A TLS connection, whichever end of it.
pub(super) trait Tls: Read + Write + Send {}
impl<T: Read + Write + Send> Tls for T {}

/// A connection on which any bytes may be sent.
pub(super) struct Wire(Box<dyn Tls>);

/// A frame as it came.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Wire {
    pub(super) fn new(tls: impl Tls + 'static) -> Self {
        Self(Box::new(tls))
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    /// Reads that many bytes.
    pub(super) fn read(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The next frame that is about a stream or ends the connection; the others are answered as
    /// HTTP/2 wants it.
    pub(super) fn next(&mut self) -> io::Result<Received> {
        loop {
            let head = self.read(9)?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let received = Received {
                kind: head[3],
                flags: head[4],
                stream,
                payload: self.read(length)?,
            };
            match received.kind {
                SETTINGS | PING if received.flags & ACK == 0 => {
                    let payload = if received.kind == PING {
                        &received.payload[..]
                    } else {
                        &[]
                    };
                    self.send(&frame(received.kind, ACK, 0, payload))?;
                }
                SETTINGS | PING | WINDOW_UPDATE => {}
                _ => return Ok(received),
            }
        }
    }

    /// Sends that many pieces, made by their number, without a look at what comes back.
    pub(super) fn flood(&mut self, count: u32, piece: impl Fn(u32) -> Vec<u8>) -> Flooded {
        let mut block = Vec::new();
        for number in 0..count {
            block.extend(piece(number));
            if block.len() < BLOCK && number + 1 < count {
                continue;
            }
            match self.send(&block) {
                Ok(()) => block.clear(),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Flooded::Stuck;
                }
                Err(_gone) => return Flooded::CutOff,
            }
        }
        Flooded::Swallowed
    }
}

/// What became of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flooded {
    /// The other end took it all.
    Swallowed,
    /// The other end takes no more, for as long as a write may take.
    Stuck,
    /// The other end closed the connection.
    CutOff,
}

/// A frame's bytes.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a test's frames are short")
        .to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A block of headers, none of them compressed.
pub(super) fn headers(list: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| {
        [
            &[u8::try_from(text.len()).expect("short")][..],
            text.as_bytes(),
        ]
        .concat()
    };
    list.iter()
        .flat_map(|(name, value)| [vec![0], text(name), text(value)].concat())
        .collect()
}

/// One entry of SETTINGS: the window of new streams.
pub(super) fn initial_window(bytes: u32) -> Vec<u8> {
    [&[0, 4][..], &bytes.to_be_bytes()].concat()
}

/// A gRPC message.
pub(super) fn grpc(message: &impl Message) -> Vec<u8> {
    rough_grpc(&message.encode_to_vec())
}

/// A gRPC message of any bytes.
pub(super) fn rough_grpc(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a test's messages are short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// The provider that all of Culvert uses.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates in a file.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.with_context(|| format!("read the certificates in {}", path.display()))
}

/// The key in a file.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path)
        .with_context(|| format!("read the key in {}", path.display()))
}

/// Who signs the other end's certificate.
pub(super) fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}
