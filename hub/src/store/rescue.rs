//! The rescue file: what the node needs to start, should the database not open. Two slots are
//! written in turn, so that one is always whole.

use std::io;
use std::path::{Path, PathBuf};

use super::{Batch, Rows, Table};

const MAGIC: &[u8; 8] = b"cvhub\0r2";
/// Bytes of the rows of one file. A longer one is not read.
const MAX_ROWS: usize = 512 << 20;

/// Writes the rows of a batch to the slot that holds the older rescue, unless the newer one has just
/// these rows.
pub(super) fn write(directory: &Path, batch: &Batch) -> io::Result<()> {
    let rows = encode_rows(batch);
    let mut slot = 0;
    let mut sequence = 1;
    if let Some(newest) = newest(directory) {
        if newest.content == rows {
            return Ok(());
        }
        slot = 1 - newest.slot;
        sequence = newest.sequence + 1;
    }
    culvert_daemon::write_atomic(&path(directory, slot), &encode(sequence, &rows), 0o600)
}

/// Reads the newest whole slot.
pub(super) fn read(directory: &Path) -> Option<Rows> {
    decode_rows(&newest(directory)?.content)
}

struct Rescue {
    slot: usize,
    sequence: u64,
    content: Vec<u8>,
}

fn newest(directory: &Path) -> Option<Rescue> {
    let slots = (0..2).filter_map(|slot| {
        let (sequence, content) = decode(&std::fs::read(path(directory, slot)).ok()?)?;
        Some(Rescue {
            slot,
            sequence,
            content,
        })
    });
    slots.max_by_key(|it| it.sequence)
}

fn path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("rescue.{slot}"))
}

/// Magic, sequence, rows (LZ4, their length before them), and a CRC-32 of all that.
fn encode(sequence: u64, rows: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&lz4_flex::block::compress_prepend_size(rows));
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Table, key and value of each row, each with its length.
fn encode_rows(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::new();
    for table in Table::ALL {
        for (key, value) in batch.changes(table) {
            let Some(value) = value else { continue };
            put_field(&mut bytes, &[table.name().as_bytes()]);
            put_field(&mut bytes, &[key.as_bytes()]);
            let (head, rest) = value.parts();
            put_field(&mut bytes, &[head, &rest]);
        }
    }
    bytes
}

fn put_field(bytes: &mut Vec<u8>, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
}

fn decode(bytes: &[u8]) -> Option<(u64, Vec<u8>)> {
    let (content, sum) = bytes.split_last_chunk()?;
    if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (sequence, packed) = content.strip_prefix(MAGIC)?.split_first_chunk()?;
    let (length, block) = lz4_flex::block::uncompressed_size(packed).ok()?;
    if length > MAX_ROWS {
        return None;
    }
    let rows = lz4_flex::block::decompress(block, length).ok()?;
    Some((u64::from_le_bytes(*sequence), rows))
}

fn decode_rows(mut rest: &[u8]) -> Option<Rows> {
    let mut rows = Rows::default();
    while !rest.is_empty() {
        let table = Table::named(str::from_utf8(take_field(&mut rest)?).ok()?)?;
        let key = str::from_utf8(take_field(&mut rest)?).ok()?.to_owned();
        let value = take_field(&mut rest)?.to_vec();
        rows.insert(table, key, value);
    }
    Some(rows)
}

fn take_field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    let (field, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    Some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(value: &str) -> Batch {
        let mut batch = Batch::default();
        batch.put(Table::Meta, "key".to_owned(), value.as_bytes().to_vec());
        batch
    }

    fn value(directory: &Path) -> Option<Vec<u8>> {
        read(directory)?
            .find(Table::Meta, "key")
            .map(<[u8]>::to_vec)
    }

    #[test]
    fn the_newest_whole_slot_is_read() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(value(directory.path()), None);
        for text in ["one", "two", "three"] {
            write(directory.path(), &batch(text)).unwrap();
            assert_eq!(value(directory.path()).unwrap(), text.as_bytes());
        }
        let newest = path(directory.path(), 0);
        let mut bytes = std::fs::read(&newest).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&newest, bytes).unwrap();
        assert_eq!(value(directory.path()).unwrap(), b"two");
    }
}
