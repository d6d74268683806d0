//! Payload that a stream's socket has not taken yet.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Pieces below this length are merged while their socket is blocked.
const PIECE_MIN: usize = 4 << 10;
/// Pieces below this length, and pieces that are not most of their frame, are copied while their
/// socket is blocked. A piece is a slice of HTTP/2's read buffer and keeps all of it alive: mostly
/// one frame of 64 KiB, 128 KiB from a hostile peer.
const COPY_BELOW: usize = 32 << 10;
/// Small pieces are merged up to about this length.
const BLOCK: usize = 16 << 10;

/// Payload in order, bounded by the stream's window.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pieces: VecDeque<Bytes>,
    /// Payload after `pieces`, which still grows.
    tail: BytesMut,
    /// Payload bytes in `pieces` and `tail`.
    bytes: usize,
    /// Bytes that the first piece keeps alive beside its own: the rest of its frame, and what was
    /// written of it.
    spent: usize,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Memory that the backlog keeps alive: its payload, and what the first piece is a slice of.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.spent
    }

    /// Adds `data`, a slice of a buffer of `chunk` bytes.
    pub(super) fn push(&mut self, data: Bytes, chunk: usize) {
        let is_first = self.is_empty();
        self.bytes += data.len();
        if is_first {
            // It is written at once, so it is not copied.
            self.spent = chunk - data.len();
            self.pieces.push_back(data);
        } else if data.len() < PIECE_MIN {
            self.tail.extend_from_slice(&data);
            if self.tail.len() >= BLOCK {
                self.close_tail();
            }
        } else {
            self.close_tail();
            self.pieces.push_back(owned(data, chunk));
        }
    }

    /// The socket is blocked, so that the rest of the first piece may stay for long.
    pub(super) fn blocks(&mut self) {
        if let Some(first) = self.pieces.front_mut()
            && first.len() < COPY_BELOW
        {
            *first = Bytes::copy_from_slice(first);
            self.spent = 0;
        }
    }

    pub(super) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail, |piece| piece)
    }

    pub(super) fn advance(&mut self, written: usize) {
        self.bytes -= written;
        self.spent += written;
        match self.pieces.front_mut() {
            Some(piece) if written < piece.len() => piece.advance(written),
            Some(_) => {
                self.pieces.pop_front();
                self.spent = 0;
            }
            None => self.tail.advance(written),
        }
        if self.bytes == 0 {
            self.tail = BytesMut::new();
            self.spent = 0;
        }
    }

    /// Removes at most `most` bytes from the front.
    pub(super) fn read(&mut self, most: usize) -> Bytes {
        let length = self.front().len().min(most);
        let taken = match self.pieces.front() {
            Some(piece) => piece.slice(..length),
            None => Bytes::copy_from_slice(&self.tail[..length]),
        };
        self.advance(length);
        taken
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            let tail = std::mem::take(&mut self.tail);
            self.pieces.push_back(tail.freeze());
        }
    }
}

/// `data` itself if it is most of the buffer that it keeps alive, else a copy.
fn owned(data: Bytes, chunk: usize) -> Bytes {
    let is_most = data.len() > chunk - chunk / 8;
    if data.len() >= COPY_BELOW && is_most {
        data
    } else {
        Bytes::copy_from_slice(&data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a whole frame.
    fn push(backlog: &mut Backlog, data: impl Into<Bytes>) {
        let data = data.into();
        let chunk = data.len();
        backlog.push(data, chunk);
    }

    #[test]
    fn a_backlog_keeps_order_and_puts_small_pieces_together() {
        let mut backlog = Backlog::default();
        let pieces = [
            Bytes::from_static(b"a"),
            Bytes::from_static(b"b"),
            Bytes::from_static(b"c"),
            Bytes::from(vec![7; PIECE_MIN]),
            Bytes::from(vec![8; COPY_BELOW]),
            Bytes::from_static(b"d"),
        ];
        pieces
            .iter()
            .for_each(|piece| push(&mut backlog, piece.clone()));
        assert_eq!(backlog.pieces.len(), 4, "b and c are one");
        let mut read = Vec::new();
        while !backlog.is_empty() {
            let part = backlog.front().len().min(3000);
            read.extend_from_slice(&backlog.front()[..part]);
            backlog.advance(part);
        }
        assert!(read == pieces.concat());
        assert_eq!((backlog.memory(), backlog.tail.capacity()), (0, 0));
    }

    #[test]
    fn what_is_taken_comes_in_order_and_counts_no_more() {
        let mut backlog = Backlog::default();
        push(&mut backlog, vec![7; COPY_BELOW]);
        push(&mut backlog, &b"tail"[..]);
        assert_eq!(backlog.read(10), vec![7; 10]);
        assert_eq!(backlog.memory(), COPY_BELOW + 4, "the rest of the piece");
        assert_eq!(backlog.read(usize::MAX), vec![7; COPY_BELOW - 10]);
        assert_eq!(
            (backlog.read(1), backlog.read(9)),
            ("t".into(), "ail".into())
        );
        assert_eq!(backlog.memory(), 0);
    }

    #[test]
    fn a_piece_of_a_frame_keeps_no_more_alive_than_is_counted() {
        let frame = Bytes::from(vec![7; 64 << 10]);
        let mut backlog = Backlog::default();
        backlog.push(frame.slice(..9), frame.len());
        assert_eq!(
            backlog.memory(),
            frame.len(),
            "the first is a slice until its socket blocks"
        );
        backlog.blocks();
        assert_eq!(backlog.memory(), 9);
        let lengths = [1, PIECE_MIN, COPY_BELOW - 1, COPY_BELOW + 1];
        for length in lengths {
            backlog.push(frame.slice(..length), frame.len());
        }
        assert!(frame.is_unique(), "none is kept alive");
        assert_eq!(backlog.memory(), 9 + lengths.iter().sum::<usize>());
    }

    #[test]
    fn what_was_taken_of_a_piece_counts_until_all_of_it_was() {
        let mut backlog = Backlog::default();
        push(&mut backlog, vec![7; 64 << 10]);
        push(&mut backlog, vec![8; 64 << 10]);
        backlog.advance(60 << 10);
        assert_eq!(backlog.memory(), 128 << 10);
        backlog.advance(4 << 10);
        assert_eq!(backlog.memory(), 64 << 10);
    }
}
