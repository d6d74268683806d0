//! A datagram at the DNS server.
#![no_main]

use std::sync::LazyLock;

use culvert_redirector::fuzzing::Dns;
use hickory_proto::op::{Message, MessageType};
use libfuzzer_sys::fuzz_target;

static DNS: LazyLock<Dns> = LazyLock::new(Dns::default);

fuzz_target!(|query: &[u8]| {
    let Some(answered) = DNS.answer(query) else {
        return;
    };
    assert!(
        answered.udp.len() <= answered.room,
        "{} bytes, asked for {}",
        answered.udp.len(),
        answered.room
    );
    let udp = Message::from_vec(&answered.udp).expect("an answer is DNS");
    let tcp = Message::from_vec(&answered.tcp).expect("an answer is DNS");
    for answer in [&udp, &tcp] {
        assert_eq!(answer.metadata.message_type, MessageType::Response);
        assert_eq!(
            answer.metadata.id.to_be_bytes(),
            query[..2],
            "the query's own number"
        );
    }
    if !udp.metadata.truncation {
        assert_eq!(
            udp.answers, tcp.answers,
            "only a truncated answer says less"
        );
    }
});
