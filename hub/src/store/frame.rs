//! A value as it is on disk: length, checksum, bytes. redb checks its pages when it recovers, not
//! when it reads; a flipped bit must not become a wrong answer.

use super::Table;
use super::batch::Value;

const HEAD: usize = 8;

/// Frames a value: length and CRC-32 (IEEE), both little-endian, then the bytes. The checksum also
/// covers where the value belongs.
pub(super) fn frame(table: Table, key: &str, value: &Value) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let (head, rest) = value.parts();
    let parts = [head, &rest];
    let mut framed = Vec::with_capacity(HEAD + value.len());
    framed.extend_from_slice(&length.to_le_bytes());
    framed.extend_from_slice(&checksum(table, key, &parts).to_le_bytes());
    for part in parts {
        framed.extend_from_slice(part);
    }
    framed
}

/// Takes the value out of its frame; `None` if it is damaged.
pub(super) fn unframe<'a>(table: Table, key: &str, framed: &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = framed.split_first_chunk()?;
    let (sum, value) = rest.split_first_chunk()?;
    let intact = u32::from_le_bytes(*length) as usize == value.len()
        && u32::from_le_bytes(*sum) == checksum(table, key, &[value]);
    intact.then_some(value)
}

fn checksum(table: Table, key: &str, value: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(table.name().as_bytes());
    hasher.update(&[0]);
    hasher.update(key.as_bytes());
    hasher.update(&[0]);
    value.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let value = Value::new(b"va".to_vec(), Bytes::from_static(b"lue"));
        let framed = frame(Table::Objects, "key", &value);
        assert_eq!(
            unframe(Table::Objects, "key", &framed),
            Some(b"value".as_slice())
        );
        for bit in 0..framed.len() * 8 {
            let mut flipped = framed.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unframe(Table::Objects, "key", &flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_value_of_another_row_is_noticed() {
        let framed = frame(Table::Objects, "key", &b"value".to_vec().into());
        assert_eq!(unframe(Table::Objects, "other", &framed), None);
        assert_eq!(unframe(Table::Sets, "key", &framed), None);
    }
}
