//! DNS queries over UDP. Answers are parsed only as far as the tests need.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::Host;
use crate::{Lab, inside};
use anyhow::{Context, Result, bail, ensure};

/// Asks for IPv4 addresses.
pub const A: u16 = 1;
/// Asks for texts.
pub const TXT: u16 = 16;
/// Asks for IPv6 addresses.
pub const AAAA: u16 = 28;

/// Longer than resolvers wait for upstream servers that do not answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

/// A server's answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The name has these addresses.
    Addresses(Vec<IpAddr>),
    /// The name exists, without records of this type.
    NoData,
    /// The name does not exist.
    NoSuchName,
    /// The server is not responsible for this name.
    Refused,
    /// Any other response code.
    Other(u8),
}

impl Answer {
    /// The first address, as text.
    pub fn first(self) -> Option<String> {
        match self {
            Self::Addresses(addresses) => addresses.first().map(IpAddr::to_string),
            Self::NoData | Self::NoSuchName | Self::Refused | Self::Other(_) => None,
        }
    }
}

/// Asks the redirector.
///
/// # Errors
/// No answer comes in time, or it cannot be parsed.
pub fn ask(lab: &Lab, name: &str, kind: u16) -> Result<Answer> {
    Resolver::seen_from(lab.site(Host::Cloud).netns(), Host::Cloud.address()).ask(name, kind)
}

/// A DNS server, asked from a network namespace.
pub struct Resolver {
    netns: PathBuf,
    server: IpAddr,
}

impl Resolver {
    /// The server at this address, asked from a network namespace.
    pub fn seen_from(netns: &Path, server: IpAddr) -> Self {
        Self {
            netns: netns.to_owned(),
            server,
        }
    }

    /// Asks for one name.
    ///
    /// # Errors
    /// No answer comes in time, or it cannot be parsed.
    pub fn ask(&self, name: &str, kind: u16) -> Result<Answer> {
        let answers = self.ask_each(&[name.to_owned()], kind)?;
        answers.into_iter().next().context("no answer")
    }

    /// Asks for one name after the other, and returns the answers in the order of the names.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_each(&self, names: &[String], kind: u16) -> Result<Vec<Answer>> {
        inside::run(&self.netns, || {
            let own: IpAddr = match self.server {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((own, 0))?;
            socket.connect((self.server, 53))?;
            socket.set_read_timeout(Some(ANSWER_TIME))?;
            (1..)
                .zip(names)
                .map(|(id, name)| {
                    let question = question(id, name, kind);
                    let answer = exchange(&socket, &question)
                        .with_context(|| format!("ask {} for {name}", self.server))?;
                    read(&answer, question.len())
                })
                .collect()
        })
    }
}

/// Repeats the question until there is an answer, as every client does: datagrams get lost.
fn exchange(socket: &UdpSocket, question: &[u8]) -> Result<Vec<u8>> {
    let mut answer = vec![0; 1500];
    for _ in 0..TRIES {
        socket.send(question)?;
        loop {
            match socket.recv(&mut answer) {
                // Other datagrams answer an earlier question that was sent twice.
                Ok(length) if answer[..length].starts_with(&question[..2]) => {
                    return Ok(answer[..length].to_vec());
                }
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    bail!("no answer to {TRIES} questions of {ANSWER_TIME:?}")
}

fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut packet = id.to_be_bytes().to_vec();
    packet.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).expect("labels in tests are short"));
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&1u16.to_be_bytes());
    packet
}

/// The answers begin after the repeated question.
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
    let mut at = question;
    let mut addresses = Vec::new();
    for _ in 0..count {
        at = after_name(packet, at).context("a cut name")?;
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

/// The offset after a name: after its empty label, or after a pointer.
pub fn after_name(packet: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *packet.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length => at += usize::from(length) + 1,
        }
    }
}
