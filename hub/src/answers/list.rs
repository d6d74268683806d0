//! A list from memory. It is written while its client reads it: the objects stay compressed until
//! then, and are shared with all other readers.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use crate::cache::{Cursor, Item, Snapshot};
use crate::upstream::{Body, BodyError, full};
use crate::wire::Encoding;
use crate::wire::write::ListWriter;

/// What is written at once.
const PART: usize = 32 << 10;

struct LocalList {
    snapshot: Snapshot,
    cursor: Cursor,
    /// `None`: the list has been written.
    writer: Option<ListWriter>,
    out: BytesMut,
}

/// The body of the answer.
pub(super) fn body(encoding: Encoding, snapshot: Snapshot) -> Body {
    let mut out = BytesMut::new();
    let lengths = snapshot.items().map(Item::len);
    let writer = ListWriter::start(encoding, &snapshot.head, lengths, &mut out);
    let mut list = LocalList {
        snapshot,
        cursor: Cursor::default(),
        writer: Some(writer),
        out,
    };
    let first = list.next_part();
    if list.writer.is_none() {
        return full(first);
    }
    let first = stream::iter([Ok(Frame::data(first))]);
    let rest = stream::unfold(list, |mut list| async move {
        list.writer.as_ref()?;
        Some((Ok::<_, BodyError>(Frame::data(list.next_part())), list))
    });
    StreamBody::new(first.chain(rest)).boxed_unsync()
}

impl LocalList {
    fn next_part(&mut self) -> Bytes {
        while self.out.len() < PART
            && let Some(writer) = &mut self.writer
        {
            match self.snapshot.next_item(&mut self.cursor) {
                Some(item) => writer.item(&item.bytes(), &mut self.out),
                None => {
                    if let Some(writer) = self.writer.take() {
                        writer.end(&mut self.out);
                    }
                }
            }
        }
        self.out.split().freeze()
    }
}
