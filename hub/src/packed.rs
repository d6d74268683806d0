//! Bytes that are held compressed (LZ4), because most of them are read seldom. Objects of one kind
//! are much alike, so each is compressed beside a sample of its kind. To read one again takes less
//! than a microsecond for each 2 kB.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use lz4_flex::block;

/// More of a sample makes objects hardly smaller, and compressing them slower. In bytes.
const SAMPLE_MAX: usize = 4 << 10;

/// The sample of one kind of objects: the first of them that is packed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample(Arc<OnceLock<Box<[u8]>>>);

impl Sample {
    fn get_or_begin_with(&self, bytes: &[u8]) -> &[u8] {
        let start = &bytes[..bytes.len().min(SAMPLE_MAX)];
        self.0.get_or_init(|| start.into())
    }
}

/// Bytes, compressed if that makes them shorter.
#[derive(Clone, Debug)]
pub(crate) enum Packed {
    Plain(Bytes),
    Compressed {
        /// In a block of LZ4.
        block: Box<[u8]>,
        /// Before they were compressed.
        length: u32,
        sample: Sample,
    },
}

impl Packed {
    /// Compresses bytes beside a sample.
    pub(crate) fn new(bytes: Bytes, sample: &Sample) -> Self {
        let block = block::compress_with_dict(&bytes, sample.get_or_begin_with(&bytes));
        match u32::try_from(bytes.len()) {
            Ok(length) if block.len() < bytes.len() => Self::Compressed {
                // Shrunk in place it would keep the memory that the whole bytes need.
                block: block[..].into(),
                length,
                sample: sample.clone(),
            },
            _ => Self::Plain(bytes),
        }
    }

    /// The bytes as they were.
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Plain(bytes) => bytes.clone(),
            Self::Compressed {
                block,
                length,
                sample,
            } => {
                let sample = sample.0.get().map_or(&[][..], |it| it);
                block::decompress_with_dict(block, *length as usize, sample)
                    .expect("only `new` makes blocks, with this sample and length")
                    .into()
            }
        }
    }

    /// Whether both have the same bytes.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        if let (
            Self::Compressed { block, sample, .. },
            Self::Compressed {
                block: other_block,
                sample: other_sample,
                ..
            },
        ) = (self, other)
            && Arc::ptr_eq(&sample.0, &other_sample.0)
            && block == other_block
        {
            return true;
        }
        self.len() == other.len() && self.bytes() == other.bytes()
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Compressed { length, .. } => *length as usize,
        }
    }

    /// How many bytes of memory they take.
    pub(crate) fn held_len(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Compressed { block, .. } => block.len(),
        }
    }

    /// The sample beside which they were compressed.
    pub(crate) fn sample(&self) -> Option<&Sample> {
        match self {
            Self::Plain(_) => None,
            Self::Compressed { sample, .. } => Some(sample),
        }
    }
}

impl From<Bytes> for Packed {
    fn from(bytes: Bytes) -> Self {
        Self::Plain(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(number: usize) -> Bytes {
        let name = format!("cart-{number}");
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"shop","labels":{{"app":"{name}"}}}},"spec":{{"type":"ClusterIP"}}}}"#
        )
        .into()
    }

    #[test]
    fn objects_that_are_alike_take_little_memory() {
        let sample = Sample::default();
        for number in 0..100 {
            let packed = Packed::new(object(number), &sample);
            assert_eq!(packed.bytes(), object(number));
            assert_eq!(packed.len(), object(number).len());
            assert!(packed.held_len() * 2 < packed.len(), "{packed:?}");
        }
    }

    #[test]
    fn what_does_not_get_shorter_stays_as_it_is() {
        let sample = Sample::default();
        for bytes in [&b""[..], b"x"] {
            let packed = Packed::new(Bytes::from_static(bytes), &sample);
            assert_eq!(packed.bytes(), bytes);
            assert!(packed.sample().is_none());
        }
    }

    proptest! {
        #[test]
        fn whatever_is_packed_comes_back(
            first in proptest::collection::vec(0..4_u8, 0..3 * SAMPLE_MAX),
            second in proptest::collection::vec(0..4_u8, 0..200),
        ) {
            let sample = Sample::default();
            for bytes in [first, second] {
                let bytes = Bytes::from(bytes);
                prop_assert_eq!(Packed::new(bytes.clone(), &sample).bytes(), bytes);
            }
        }
    }
}
