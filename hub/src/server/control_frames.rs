//! The control frames that a client sends on a connection of HTTP/2. Each costs the hub's only thread
//! some time, and h2 (0.4.20) limits none of PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM, GOAWAY
//! and unknown types. Empty DATA, small DATA that nobody reads, CONTINUATION, and streams that are reset
//! before they are served it limits itself.

use std::io::{Error, Result};
use std::time::Instant;

/// Frames that a client may send at once.
const AT_ONCE: u64 = 1000;
/// For pings, and requests that are given up before their answer.
const PER_SECOND: u64 = 10;
/// Bytes that are written to a client, for which it may send one frame: it gives back the window of a
/// stream and that of the connection. An answer to PING or SETTINGS is shorter.
const WRITTEN_PER_FRAME: u64 = 32;

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// Of a frame: three bytes of length, and one that says what it is.
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// Counts the control frames of one connection.
#[derive(Debug)]
pub(super) struct ControlFrames {
    began: Instant,
    head: [u8; HEAD],
    /// How much of the next head was read.
    head_read: usize,
    /// How much of this frame, or of the preface, is to come.
    rest: usize,
    received: u64,
    written: u64,
}

impl Default for ControlFrames {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            head: [0; HEAD],
            head_read: 0,
            rest: PREFACE,
            received: 0,
            written: 0,
        }
    }
}

impl ControlFrames {
    /// Counts the frames in what was read from the client.
    ///
    /// # Errors
    /// They are more than a client needs.
    pub(super) fn record_read(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let copied = (HEAD - self.head_read).min(bytes.len());
            self.head[self.head_read..][..copied].copy_from_slice(&bytes[..copied]);
            self.head_read += copied;
            bytes = &bytes[copied..];
            if self.head_read == HEAD {
                self.head_read = 0;
                self.begin_frame();
            }
        }
        if self.received > self.allowed() {
            return Err(Error::other("too many control frames of HTTP/2"));
        }
        Ok(())
    }

    pub(super) const fn record_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, ..] = self.head;
        self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
        if !matches!(kind, DATA | HEADERS | CONTINUATION) {
            self.received += 1;
        }
    }

    fn allowed(&self) -> u64 {
        let seconds = self.began.elapsed().as_secs();
        AT_ONCE + seconds * PER_SECOND + self.written / WRITTEN_PER_FRAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of this type with a payload of such a length.
    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        frame.resize(HEAD + usize::from(length), 0xff);
        frame
    }

    fn begun() -> ControlFrames {
        let mut frames = ControlFrames::default();
        frames.record_read(&[0xff; PREFACE]).unwrap();
        frames
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut sent = Vec::new();
        for kind in [0, 6, 1, 9, 4, 8, 0x42, 3] {
            sent.extend(frame(kind, kind));
        }
        for length in 1..sent.len() {
            let mut frames = begun();
            for part in sent.chunks(length) {
                frames.record_read(part).unwrap();
            }
            assert_eq!(frames.received, 5, "{length}");
        }
    }

    #[test]
    fn a_client_may_give_back_the_windows_of_what_it_reads_and_does_not_flood() {
        const PING: u8 = 6;
        const WINDOW_UPDATE: u8 = 8;
        let mut reader = begun();
        let mut flood = begun();
        for _ in 0..10 * AT_ONCE {
            // A short event.
            reader.record_written(64);
            reader.record_read(&frame(WINDOW_UPDATE, 4)).unwrap();
            reader.record_read(&frame(WINDOW_UPDATE, 4)).unwrap();
        }
        let mut sent = 0;
        while flood.record_read(&frame(PING, 8)).is_ok() {
            flood.record_written(HEAD + 8);
            sent += 1;
            assert!(sent < 10 * AT_ONCE);
        }
    }
}
