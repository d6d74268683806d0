//! One question to the redirector's DNS: does it answer for its zone?

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;

const TIMEOUT: Duration = Duration::from_secs(2);

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsError {
    #[error("ask it")]
    Ask(#[source] std::io::Error),
    #[error("no answer in {} s", TIMEOUT.as_secs())]
    Silent,
    #[error(
        "it answers REFUSED to its own host: another program than the redirector answers there"
    )]
    Refused,
    #[error("it answers: {0}")]
    Failed(ResponseCode),
    #[error("its answer is not a DNS answer to the question")]
    Nonsense,
    #[error("the zone is not a DNS name")]
    Zone(#[from] ProtoError),
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
        .send(&question(id, zone)?)
        .await
        .map_err(DnsError::Ask)?;
    let mut answer = [0; 512];
    let received = tokio::time::timeout(TIMEOUT, socket.recv(&mut answer)).await;
    let length = received
        .map_err(|_| DnsError::Silent)?
        .map_err(DnsError::Ask)?;
    judge(id, answer.get(..length).unwrap_or_default())
}

fn question(id: u16, zone: &str) -> Result<Vec<u8>, ProtoError> {
    let mut zone = Name::from_ascii(zone)?;
    zone.set_fqdn(true);
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(zone, RecordType::SOA));
    message.to_vec()
}

fn judge(id: u16, answer: &[u8]) -> Result<(), DnsError> {
    let answer = Message::from_vec(answer).map_err(|_| DnsError::Nonsense)?;
    if answer.metadata.id != id || answer.metadata.message_type != MessageType::Response {
        return Err(DnsError::Nonsense);
    }
    let code = answer.metadata.response_code;
    if code == ResponseCode::NoError {
        Ok(())
    } else if code == ResponseCode::Refused {
        Err(DnsError::Refused)
    } else {
        Err(DnsError::Failed(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_is_for_the_zones_soa() {
        let expected = b"\x12\x34\0\0\0\x01\0\0\0\0\0\0\x04edge\x08internal\0\0\x06\0\x01";
        assert_eq!(question(0x1234, "edge.internal").unwrap(), expected);
    }

    #[test]
    fn an_answer_is_judged_by_its_code() {
        let answer = |id, kind, code| {
            let mut message = Message::new(id, kind, OpCode::Query);
            message.metadata.response_code = code;
            message.to_vec().unwrap()
        };
        let judged = |code| judge(7, &answer(7, MessageType::Response, code));
        assert!(judged(ResponseCode::NoError).is_ok());
        assert!(matches!(
            judged(ResponseCode::Refused),
            Err(DnsError::Refused)
        ));
        assert!(matches!(
            judged(ResponseCode::ServFail),
            Err(DnsError::Failed(ResponseCode::ServFail))
        ));
        let of_another = answer(8, MessageType::Response, ResponseCode::NoError);
        let question = answer(7, MessageType::Query, ResponseCode::NoError);
        for nonsense in [&b""[..], b"\0\x07", &of_another, &question] {
            assert!(
                matches!(judge(7, nonsense), Err(DnsError::Nonsense)),
                "{nonsense:?}"
            );
        }
    }
}
