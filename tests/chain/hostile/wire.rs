//! Hand-written HTTP/2 over TLS, for ends of a tunnel that break its rules.

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
/// A frame type that HTTP/2 does not define.
pub(super) const UNKNOWN: u8 = 0xfa;

/// Flag of SETTINGS and PING.
const ACK: u8 = 1;
/// Flag of DATA and HEADERS.
pub(super) const END_STREAM: u8 = 1;
/// Flag of HEADERS and CONTINUATION.
pub(super) const END_HEADERS: u8 = 4;

/// The largest window that HTTP/2 allows.
pub(super) const WINDOW_MAX: u32 = (1 << 31) - 1;
/// The initial window of a connection.
pub(super) const WINDOW_DEFAULT: u32 = (1 << 16) - 1;

/// The first bytes of an HTTP/2 client.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes that a flood writes at once.
const BLOCK: usize = 16 << 10;

/// Either end of a TLS connection.
pub(super) trait Tls: Read + Write + Send {}
impl<T: Read + Write + Send> Tls for T {}

/// A connection on which a test can send any bytes.
pub(super) struct Wire(Box<dyn Tls>);

/// A received frame.
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

    /// The next frame that belongs to a stream or ends the connection. It answers the other frames
    /// as HTTP/2 requires.
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

    /// Sends that many pieces, made by their number, without reading.
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

/// The result of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flooded {
    /// The other end accepted everything.
    Swallowed,
    /// The other end accepts no more, and a write has timed out.
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

/// A block of headers, without compression.
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

/// A gRPC message with arbitrary bytes.
pub(super) fn rough_grpc(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a test's messages are short");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// The cryptography provider of all Culvert programs.
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

/// The authorities that may sign the other end's certificate.
pub(super) fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}
