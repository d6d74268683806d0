//! Whether the backend of a stream has answered, by the bytes that pass.

use crate::tls_records::{self, Record, Records};

/// Tickets of one handshake may differ by a block of their cipher.
const TICKETS_DIFFER: u16 = 16;

/// A direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this end's socket.
    IntoTunnel,
    /// To this end's socket.
    OutOfTunnel,
}

/// What the bytes of a stream so far say of its backend.
///
/// A backend has answered if the last bytes came from it. This is wrong for a while in TLS 1.3:
/// after the client's handshake and its request, a backend sends session tickets, whatever becomes
/// of the request, and all records look alike. So the first record after the client's handshake
/// counts as a ticket, with those of its length that follow, and only another one is an answer. A
/// backend sends no tickets then if the client cannot use them, or if it sent them before the
/// client's handshake was complete. The handshake of each side ends with the first record of the
/// length of a Finished message.
///
/// What this cannot tell: frames of HTTP/2 in TLS that answer nothing, such as SETTINGS.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    last: Option<Direction>,
    protocol: Protocol,
}

#[derive(Debug, Default)]
enum Protocol {
    /// No byte yet.
    #[default]
    Unknown,
    /// TLS, until the first answer.
    Tls(Box<Handshake>),
    /// The direction of the last bytes decides.
    Plain,
}

/// A connection of TLS whose backend has sent nothing but its handshake, and perhaps tickets.
#[derive(Debug)]
struct Handshake {
    from_client: Records,
    from_backend: Records,
    client: Client,
    backend: Backend,
}

/// How far the client has come, by its encrypted records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Client {
    /// None yet.
    #[default]
    Hello,
    /// Some, and none is a Finished message.
    Encrypted,
    /// Its Finished message.
    Finished,
    /// More after that.
    Asked,
}

/// How far the backend has come, by its encrypted records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Backend {
    /// None yet.
    #[default]
    Hello,
    /// Some, and none is a Finished message.
    Encrypted,
    /// Its Finished message.
    Finished,
    /// More, before the client had sent an encrypted record.
    EarlyTickets,
    /// A record of this length afterwards, and others of about this length.
    Tickets(u16),
}

impl Answer {
    /// Reads the next bytes of the stream.
    pub(crate) fn pass(&mut self, direction: Direction, bytes: &[u8]) {
        let Some(first) = bytes.first() else {
            return;
        };
        if matches!(self.protocol, Protocol::Unknown) {
            let is_tls = direction == Direction::IntoTunnel && *first == tls_records::HANDSHAKE;
            self.protocol = if is_tls {
                Protocol::Tls(Box::new(Handshake::new()))
            } else {
                Protocol::Plain
            };
        }
        if let Protocol::Tls(handshake) = &mut self.protocol
            && handshake.is_over_after(direction, bytes)
        {
            self.protocol = Protocol::Plain;
        }
        self.last = Some(direction);
    }

    /// The direction of the last bytes; `None`: there were none yet.
    pub(crate) fn last(&self) -> Option<Direction> {
        self.last
    }

    /// Whether the backend has bytes of the client that it has not answered.
    pub(crate) fn is_due(&self) -> bool {
        let backend_is_next = self.last == Some(Direction::IntoTunnel);
        let Protocol::Tls(handshake) = &self.protocol else {
            return backend_is_next;
        };
        match handshake.client {
            Client::Hello | Client::Encrypted => backend_is_next,
            Client::Finished => false,
            Client::Asked => true,
        }
    }
}

impl Handshake {
    fn new() -> Self {
        Self {
            from_client: Records::of_client(),
            from_backend: Records::default(),
            client: Client::default(),
            backend: Backend::default(),
        }
    }

    /// Reads more bytes. The result is whether they have the first answer, or are not TLS 1.3.
    fn is_over_after(&mut self, direction: Direction, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        loop {
            let records = match direction {
                Direction::IntoTunnel => &mut self.from_client,
                Direction::OutOfTunnel => &mut self.from_backend,
            };
            let Some(record) = records.next(&mut rest) else {
                return false;
            };
            if record.kind != tls_records::ENCRYPTED {
                continue;
            }
            let is_over = match direction {
                Direction::IntoTunnel => self.client_sent(record),
                Direction::OutOfTunnel => self.is_answer(record),
            };
            if is_over {
                return true;
            }
        }
    }

    /// Whether the connection is older than TLS 1.3, where the backend's handshake shows as such.
    fn client_sent(&mut self, record: Record) -> bool {
        self.client = match self.client {
            Client::Hello | Client::Encrypted if record.is_finished() => Client::Finished,
            Client::Hello | Client::Encrypted => Client::Encrypted,
            Client::Finished | Client::Asked => Client::Asked,
        };
        self.backend == Backend::Hello
    }

    fn is_answer(&mut self, record: Record) -> bool {
        let is_in_handshake = self.client == Client::Hello;
        self.backend = match self.backend {
            Backend::Hello | Backend::Encrypted if is_in_handshake && record.is_finished() => {
                Backend::Finished
            }
            Backend::Hello | Backend::Encrypted if is_in_handshake => Backend::Encrypted,
            Backend::Finished | Backend::EarlyTickets if is_in_handshake => Backend::EarlyTickets,
            Backend::EarlyTickets => return true,
            Backend::Tickets(length) if length.abs_diff(record.length) <= TICKETS_DIFFER => {
                return false;
            }
            Backend::Tickets(_) => return true,
            Backend::Hello | Backend::Encrypted | Backend::Finished => {
                if !self.from_client.offers_resumption() {
                    return true;
                }
                Backend::Tickets(record.length)
            }
        };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_BACKEND: Direction = Direction::IntoTunnel;
    const TO_CLIENT: Direction = Direction::OutOfTunnel;

    /// A ClientHello with session tickets, or without.
    fn hello(modes: &[u8]) -> Vec<u8> {
        let mut extension = vec![0, 45, 0, u8::try_from(modes.len() + 1).unwrap()];
        extension.push(u8::try_from(modes.len()).unwrap());
        extension.extend(modes);
        let server_name = [0, 0, 0, 2, 0, 0];
        let extensions = [&server_name[..], &extension[..]].concat();
        let mut body = vec![3; 34];
        body.extend([1, 9, 0, 2, 0x13, 1, 1, 0, 0]);
        body.push(u8::try_from(extensions.len()).unwrap());
        body.extend(extensions);
        let length = u8::try_from(body.len()).unwrap();
        [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body[..]].concat()
    }

    fn records(of: &[(u8, u16)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, length) in of {
            bytes.extend([*kind, 3, 3]);
            bytes.extend(length.to_be_bytes());
            bytes.extend(vec![0; usize::from(*length)]);
        }
        bytes
    }

    /// Whether an answer is due after `bytes` in these directions, however they are divided.
    fn is_due(parts: &[(Direction, Vec<u8>)]) -> bool {
        let mut verdicts = Vec::new();
        for size in [1, 7, 1 << 14] {
            let mut answer = Answer::default();
            for (direction, bytes) in parts {
                for piece in bytes.chunks(size) {
                    answer.pass(*direction, piece);
                }
            }
            verdicts.push(answer.is_due());
        }
        assert!(
            verdicts.iter().all(|due| *due == verdicts[0]),
            "{verdicts:?}"
        );
        verdicts[0]
    }

    /// As OpenSSL's, Go's with a client's certificate, and Go's without, have been seen.
    const FLIGHT: [(u8, u16); 6] = [(22, 122), (20, 1), (23, 32), (23, 812), (23, 281), (23, 53)];
    const EARLY_TICKET: [(u8, u16); 1] = [(23, 139)];
    const REQUEST: [(u8, u16); 3] = [(20, 1), (23, 69), (23, 99)];

    fn asked(modes: &[u8], flight: &[(u8, u16)]) -> Vec<(Direction, Vec<u8>)> {
        vec![
            (TO_BACKEND, hello(modes)),
            (TO_CLIENT, records(flight)),
            (TO_BACKEND, records(&REQUEST)),
        ]
    }

    fn then(mut parts: Vec<(Direction, Vec<u8>)>, more: &[(u8, u16)]) -> Vec<(Direction, Vec<u8>)> {
        parts.push((TO_CLIENT, records(more)));
        parts
    }

    #[test]
    fn session_tickets_after_a_request_are_no_answer_and_another_record_is() {
        let asked = asked(&[1], &FLIGHT);
        assert!(is_due(&asked));
        for tickets in [&[(23, 250)][..], &[(23, 234), (23, 250)]] {
            let with_tickets = then(asked.clone(), tickets);
            assert!(is_due(&with_tickets), "{tickets:?}");
            let answered = then(with_tickets, &[(23, 130)]);
            assert!(!is_due(&answered), "{tickets:?}");
            let mut again = answered;
            again.push((TO_BACKEND, records(&[(23, 99)])));
            assert!(is_due(&again), "{tickets:?}");
            assert!(!is_due(&then(again, &[(23, 130)])), "{tickets:?}");
        }
    }

    #[test]
    fn an_answer_of_one_record_is_one_where_no_ticket_can_come() {
        let cannot_resume = asked(&[0], &FLIGHT);
        assert!(is_due(&cannot_resume));
        assert!(!is_due(&then(cannot_resume, &[(23, 130)])));
        let early = asked(&[1], &[&FLIGHT[..], &EARLY_TICKET].concat());
        assert!(is_due(&early));
        assert!(!is_due(&then(early, &[(23, 130)])));
    }

    #[test]
    fn a_client_that_has_only_shaken_hands_waits_for_nothing() {
        let mut parts = asked(&[1], &FLIGHT);
        parts.truncate(2);
        assert!(is_due(&parts[..1]), "the backend does not even greet");
        parts.push((TO_BACKEND, records(&REQUEST[..2])));
        assert!(!is_due(&parts));
        assert!(!is_due(&then(parts, &[(23, 250), (23, 250)])));
    }

    #[test]
    fn before_tls_1_3_and_without_tls_the_last_bytes_tell() {
        let old = vec![
            (TO_BACKEND, hello(&[1])),
            (TO_CLIENT, records(&[(22, 90), (22, 800), (22, 4)])),
            (TO_BACKEND, records(&[(22, 70), (20, 1), (22, 40)])),
            (TO_CLIENT, records(&[(22, 200), (20, 1), (22, 40)])),
        ];
        assert!(!is_due(&old));
        let mut asked = old;
        asked.push((TO_BACKEND, records(&[(23, 99)])));
        assert!(is_due(&asked));
        assert!(!is_due(&then(asked, &[(23, 130)])));
        let plain = [(TO_BACKEND, b"GET / HTTP/1.1\r\n\r\n".to_vec())];
        assert!(is_due(&plain));
        assert!(!is_due(&then(plain.to_vec(), &[(72, 84)])));
        assert!(!is_due(&[(TO_CLIENT, b"SSH-2.0-x\r\n".to_vec())]));
        assert!(!is_due(&[]));
    }
}
