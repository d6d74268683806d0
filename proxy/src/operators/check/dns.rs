//! One question to the redirector's DNS: does it answer for its zone?

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;

const TIMEOUT: Duration = Duration::from_secs(2);
const TYPE_SOA: u16 = 6;
const CLASS_IN: u16 = 1;
/// RFC 1035, section 4.1.1: the answer bit and the code in the header's second word.
const ANSWER: u16 = 0x8000;
const CODE: u16 = 0x000f;

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsError {
    #[error("ask it")]
    Ask(#[source] std::io::Error),
    #[error("no answer in {} s", TIMEOUT.as_secs())]
    Silent,
    #[error("it answers REFUSED: this host is none of its --dns-client ranges")]
    Refused,
    #[error("it answers with code {0}")]
    Code(u16),
    #[error("what it answers is no DNS")]
    Nonsense,
}

/// Asks for the zone's SOA, which is there whichever nodes there are.
pub(super) async fn ask(server: SocketAddr, zone: &str) -> Result<(), DnsError> {
    let local: SocketAddr = if server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(local).await.map_err(DnsError::Ask)?;
    socket.connect(server).await.map_err(DnsError::Ask)?;
    let id = rand::random();
    socket
        .send(&question(id, zone))
        .await
        .map_err(DnsError::Ask)?;
    let mut answer = [0; 512];
    let received = tokio::time::timeout(TIMEOUT, socket.recv(&mut answer)).await;
    let length = received
        .map_err(|_| DnsError::Silent)?
        .map_err(DnsError::Ask)?;
    judge(id, answer.get(..length).unwrap_or_default())
}

fn question(id: u16, zone: &str) -> Vec<u8> {
    let mut message = Vec::new();
    for word in [id, 0, 1, 0, 0, 0] {
        message.extend(word.to_be_bytes());
    }
    for label in zone.split('.').filter(|label| !label.is_empty()) {
        // A zone is a checked name: its labels have 63 bytes at most.
        message.push(label.len().min(63) as u8);
        message.extend(label.bytes().take(63));
    }
    message.push(0);
    message.extend(TYPE_SOA.to_be_bytes());
    message.extend(CLASS_IN.to_be_bytes());
    message
}

fn judge(id: u16, answer: &[u8]) -> Result<(), DnsError> {
    let word = |at: usize| {
        answer
            .get(at..at + 2)
            .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let flags = word(2)
        .filter(|flags| word(0) == Some(id) && flags & ANSWER != 0)
        .ok_or(DnsError::Nonsense)?;
    match flags & CODE {
        0 => Ok(()),
        5 => Err(DnsError::Refused),
        code => Err(DnsError::Code(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_for_the_zones_soa() {
        let expected = b"\x12\x34\0\0\0\x01\0\0\0\0\0\0\x04edge\x08internal\0\0\x06\0\x01";
        assert_eq!(question(0x1234, "edge.internal"), expected);
    }

    #[test]
    fn an_answer_is_judged_by_its_code() {
        assert!(judge(7, b"\0\x07\x84\x00rest").is_ok());
        assert!(matches!(
            judge(7, b"\0\x07\x80\x05"),
            Err(DnsError::Refused)
        ));
        assert!(matches!(
            judge(7, b"\0\x07\x80\x02"),
            Err(DnsError::Code(2))
        ));
        for nonsense in [&b""[..], b"\0\x07", b"\0\x08\x80\x00", b"\0\x07\0\0"] {
            assert!(
                matches!(judge(7, nonsense), Err(DnsError::Nonsense)),
                "{nonsense:?}"
            );
        }
    }
}
