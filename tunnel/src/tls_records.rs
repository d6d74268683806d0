//! The heads of TLS records in one direction of a stream (RFC 8446, 5.1), and of a ClientHello
//! whether it offers to resume sessions.

/// Types of records. In TLS 1.3, all that is encrypted has the second.
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const ENCRYPTED: u8 = 23;

/// Type, version and length.
const HEAD: usize = 5;
/// The length of an encrypted Finished message: head of the message, hash, type of the content, and
/// tag. With SHA-256 and with SHA-384.
const FINISHED: [u16; 2] = [4 + 32 + 1 + 16, 4 + 48 + 1 + 16];

/// The most of a ClientHello that is kept. With a post-quantum key it has 1,800 bytes.
const HELLO_MAX: usize = 8 << 10;
/// Head of the message, version and random bytes.
const HELLO_FIXED: usize = 4 + 2 + 32;
/// The extension `psk_key_exchange_modes`, and its mode that servers issue tickets for.
const PSK_MODES: u16 = 45;
const PSK_WITH_DHE: u8 = 1;

/// A record, known by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u8,
    /// The length of its content, in bytes.
    pub(crate) length: u16,
}

impl Record {
    /// Whether it is as long as an encrypted Finished message.
    pub(crate) fn is_finished(self) -> bool {
        self.kind == ENCRYPTED && FINISHED.contains(&self.length)
    }
}

/// Finds the records in bytes that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Records {
    head: [u8; HEAD],
    /// Bytes of `head` so far.
    filled: usize,
    /// Bytes of the present record's content that are to come.
    left: usize,
    /// The content of the handshake records of a client, which begin with its hello.
    hello: Option<Vec<u8>>,
}

impl Records {
    /// Keeps the hello.
    pub(crate) fn of_client() -> Self {
        Self {
            hello: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// The next record whose head ends in `bytes`, which are what is left of the piece.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Option<Record> {
        loop {
            if bytes.is_empty() {
                return None;
            }
            if self.left > 0 {
                let content = self.left.min(bytes.len());
                if let Some(hello) = &mut self.hello
                    && self.head[0] == HANDSHAKE
                    && hello.len() + content <= HELLO_MAX
                {
                    hello.extend_from_slice(&bytes[..content]);
                }
                self.left -= content;
                *bytes = &bytes[content..];
                continue;
            }
            let taken = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            *bytes = &bytes[taken..];
            if self.filled == HEAD {
                let [kind, _, _, high, low] = self.head;
                let length = u16::from_be_bytes([high, low]);
                self.filled = 0;
                self.left = usize::from(length);
                return Some(Record { kind, length });
            }
        }
    }

    /// Whether the ClientHello in these records lets the server issue session tickets.
    pub(crate) fn offers_resumption(&self) -> bool {
        let Some(hello) = &self.hello else {
            return false;
        };
        psk_modes(hello).is_some_and(|modes| modes.contains(&PSK_WITH_DHE))
    }
}

/// The modes in the extension of a ClientHello. `None`: there are none, or it makes no sense.
fn psk_modes(hello: &[u8]) -> Option<&[u8]> {
    let mut rest = hello.get(HELLO_FIXED..)?;
    let _session = short_vector(&mut rest)?;
    let _ciphers = vector(&mut rest)?;
    let _compressions = short_vector(&mut rest)?;
    let mut extensions = vector(&mut rest)?;
    while let Some([high, low]) = extensions.first_chunk() {
        let kind = u16::from_be_bytes([*high, *low]);
        extensions = &extensions[2..];
        let mut content = vector(&mut extensions)?;
        if kind == PSK_MODES {
            return short_vector(&mut content);
        }
    }
    None
}

/// Bytes with their length before them, in one byte.
fn short_vector<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first()?;
    let (vector, rest) = rest.split_at_checked(usize::from(*length))?;
    *bytes = rest;
    Some(vector)
}

/// Bytes with their length before them, in two bytes.
fn vector<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (vector, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    *bytes = rest;
    Some(vector)
}
