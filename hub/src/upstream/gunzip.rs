//! Answers that come compressed. The API server compresses those of over 128 KiB if it may: a list is then
//! a tenth as long on a link that may be metered. Clients of this node and the memory get them plain.

use std::io::{self, BufRead, Read};

use bytes::{Buf, Bytes};
use flate2::bufread::GzDecoder;
use http::{HeaderMap, HeaderValue, header};

/// Plain bytes of one frame. All are as large, so that the allocator can use their memory again.
const FRAME: usize = 32 << 10;

/// What the decompression of one body takes, rounded up: its state with the window, and a frame.
pub(crate) const DECOMPRESSION: usize = (48 << 10) + FRAME;

/// Marks an answer that is decompressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decompressed;

/// The decompression of one body.
pub(crate) struct Gunzip(GzDecoder<Compressed>);

/// What has come of a body.
struct Compressed {
    bytes: Bytes,
    is_whole: bool,
}

impl Read for Compressed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Compressed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.bytes.is_empty() && !self.is_whole {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&self.bytes)
    }

    fn consume(&mut self, used: usize) {
        self.bytes.advance(used);
    }
}

impl Gunzip {
    pub(super) fn new() -> Self {
        Self(GzDecoder::new(Compressed {
            bytes: Bytes::new(),
            is_whole: false,
        }))
    }

    /// Takes the next compressed bytes, when those before are used up.
    pub(super) fn push(&mut self, compressed: Bytes) {
        self.0.get_mut().bytes = compressed;
    }

    /// All compressed bytes have come.
    pub(super) fn finish(&mut self) {
        self.0.get_mut().is_whole = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.0.get_ref().is_whole
    }

    /// The next plain bytes. `None`: more compressed ones are needed, or it was the last.
    ///
    /// # Errors
    /// The body is not whole, or is not compressed.
    pub(super) fn next(&mut self) -> io::Result<Option<Bytes>> {
        let compressed = self.0.get_ref();
        if compressed.bytes.is_empty() && !compressed.is_whole {
            return Ok(None);
        }
        let mut plain = vec![0; FRAME];
        let mut length = 0;
        while length < FRAME {
            match self.0.read(&mut plain[length..]) {
                Ok(0) if self.0.get_ref().bytes.is_empty() => break,
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "bytes follow a compressed body",
                    ));
                }
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        plain.truncate(length);
        plain.shrink_to_fit();
        Ok((length > 0).then(|| plain.into()))
    }
}

/// Lets the API server compress its answer to a request with these headers.
pub(crate) fn accept_gzip(headers: &mut HeaderMap) {
    let gzip = HeaderValue::from_static("gzip");
    headers.insert(header::ACCEPT_ENCODING, gzip);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compressed(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    /// Decompresses what comes in pieces of that length.
    fn plain(body: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let mut gunzip = Gunzip::new();
        let mut plain = Vec::new();
        for piece in body.chunks(piece) {
            gunzip.push(Bytes::copy_from_slice(piece));
            while let Some(bytes) = gunzip.next()? {
                assert!(bytes.len() <= FRAME);
                plain.extend_from_slice(&bytes);
            }
        }
        gunzip.finish();
        while let Some(bytes) = gunzip.next()? {
            plain.extend_from_slice(&bytes);
        }
        Ok(plain)
    }

    #[test]
    fn a_body_is_plain_however_it_arrives_and_one_that_is_cut_is_an_error() {
        let text = "a list of pods ".repeat(10_000);
        let body = compressed(text.as_bytes());
        for piece in [1, 7, 1000, body.len()] {
            assert_eq!(plain(&body, piece).unwrap(), text.as_bytes());
        }
        for cut in [0, 5, 20, body.len() / 2, body.len() - 1] {
            assert!(plain(&body[..cut], 100).is_err(), "cut at {cut}");
        }
        let mut damaged = body.clone();
        damaged[body.len() - 6] ^= 1;
        assert!(plain(&damaged, 100).is_err());
        assert!(plain(b"not compressed", 100).is_err());
    }

    #[test]
    fn zeros_without_end_come_in_bounded_steps() {
        let zeros = vec![0; 64 << 20];
        let body = compressed(&zeros);
        assert_eq!(plain(&body, body.len()).unwrap().len(), zeros.len());
    }
}
