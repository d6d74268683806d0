//! One DNS question over UDP, asked in the cloud. Answers are read for what the tests compare, no further.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xtask::lab::place::Place;
use xtask::lab::{Lab, inside};

pub(crate) const A: u16 = 1;
pub(crate) const TXT: u16 = 16;
pub(crate) const AAAA: u16 = 28;

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Addresses(Vec<IpAddr>),
    /// The name exists, without such data.
    NoData,
    NoSuchName,
    Refused,
    Other(u8),
}

impl Answer {
    /// The first address, as text.
    pub(crate) fn first(self) -> Option<String> {
        match self {
            Self::Addresses(addresses) => addresses.first().map(IpAddr::to_string),
            Self::NoData | Self::NoSuchName | Self::Refused | Self::Other(_) => None,
        }
    }
}

/// Asks the redirector.
pub(crate) fn ask(lab: &Lab, name: &str, kind: u16) -> Result<Answer> {
    let question = question(name, kind);
    let answer = inside::run(lab.site(Place::Cloud).netns(), || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Place::Cloud.address(), 53))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.send(&question)?;
        let mut answer = vec![0; 1500];
        let length = socket.recv(&mut answer).context("no answer from the redirector's DNS")?;
        answer.truncate(length);
        Ok(answer)
    })?;
    read(&answer, question.len())
}

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).expect("labels in tests are short"));
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&1u16.to_be_bytes());
    packet
}

/// The answers begin behind the repeated question.
fn read(packet: &[u8], question: usize) -> Result<Answer> {
    ensure!(packet.len() >= question, "a cut answer: {packet:?}");
    let count = packet[7];
    match packet[3] & 15 {
        0 if count == 0 => return Ok(Answer::NoData),
        0 => {}
        3 => return Ok(Answer::NoSuchName),
        5 => return Ok(Answer::Refused),
        other => return Ok(Answer::Other(other)),
    }
    let (mut at, mut addresses) = (question, Vec::new());
    for _ in 0..count {
        at = behind_name(packet, at).context("a cut name")?;
        ensure!(packet.len() >= at + 10, "a cut record: {packet:?}");
        let data = at + 10;
        let length = usize::from(u16::from_be_bytes([packet[at + 8], packet[at + 9]]));
        let bytes = packet.get(data..data + length).context("a cut record")?;
        match <[u8; 4]>::try_from(bytes) {
            Ok(v4) => addresses.push(IpAddr::from(Ipv4Addr::from(v4))),
            Err(_) => addresses.push(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes)?))),
        }
        at = data + length;
    }
    Ok(Answer::Addresses(addresses))
}

/// Where a name ends: behind its empty label, or behind a pointer.
fn behind_name(packet: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *packet.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += usize::from(length) + 1,
        }
    }
}
