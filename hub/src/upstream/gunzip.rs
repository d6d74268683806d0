//! Answers that come compressed. The API server compresses those of over 128 KiB if it may: a list is then
//! a tenth as long on a link that may be metered. Clients of this node and the memory get them plain.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::GzDecoder;
use http::{HeaderMap, HeaderValue, header};

/// Compressed bytes that are decompressed at once: to 128 KiB at most, whatever they say.
const PIECE: usize = 128;
/// Plain bytes of one frame: the queue of a copy holds several.
const FRAME: usize = 32 << 10;

/// The decompression of one body.
pub(crate) struct Gunzip {
    decoder: GzDecoder<Vec<u8>>,
    compressed: Bytes,
    plain: Bytes,
    is_finished: bool,
}

impl Gunzip {
    pub(super) fn new() -> Self {
        Self {
            decoder: GzDecoder::new(Vec::new()),
            compressed: Bytes::new(),
            plain: Bytes::new(),
            is_finished: false,
        }
    }

    /// Takes the next compressed bytes, when those before are used up.
    pub(super) fn push(&mut self, compressed: Bytes) {
        self.compressed = compressed;
    }

    /// The next plain bytes. `None`: more compressed ones are needed.
    pub(super) fn next(&mut self) -> io::Result<Option<Bytes>> {
        if !self.plain.is_empty() {
            return Ok(self.frame());
        }
        while self.decoder.get_ref().len() < FRAME && !self.compressed.is_empty() {
            let length = self.compressed.len().min(PIECE);
            let used = self.decoder.write(&self.compressed[..length])?;
            if used == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "bytes follow a compressed body",
                ));
            }
            self.compressed.advance(used);
        }
        self.plain = std::mem::take(self.decoder.get_mut()).into();
        Ok(self.frame())
    }

    fn frame(&mut self) -> Option<Bytes> {
        let length = self.plain.len().min(FRAME);
        (length > 0).then(|| self.plain.split_to(length))
    }

    /// All compressed bytes have come. `false`: that was known.
    ///
    /// # Errors
    /// The body is not whole.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        if self.is_finished {
            return Ok(false);
        }
        self.is_finished = true;
        self.decoder.try_finish()?;
        self.plain = std::mem::take(self.decoder.get_mut()).into();
        Ok(true)
    }
}

/// Lets the API server compress its answer to a request with these headers.
pub(crate) fn accept_gzip(headers: &mut HeaderMap) {
    let gzip = HeaderValue::from_static("gzip");
    headers.insert(header::ACCEPT_ENCODING, gzip);
}

#[cfg(test)]
mod tests {
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
                assert!(bytes.len() <= FRAME && gunzip.plain.len() <= 5 << 20);
                plain.extend_from_slice(&bytes);
            }
        }
        gunzip.finish()?;
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
