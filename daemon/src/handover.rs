//! Hands listening sockets from one process of this host to another, over a Unix socket (`man 7
//! unix`, `SCM_RIGHTS`). A proxy gives them to its successor, or to the redirector, which keeps
//! them until the next proxy is there.
//!
//! Each message is its length (4 bytes, big endian) and JSON. The taker begins with
//! [`Message::Take`], a proxy that leaves its sockets with another process with [`Message::Keep`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::local_socket::is_trusted;

/// Version of the protocol. Another one is refused: then the programs start as if the other were
/// not there.
pub const HANDOVER_VERSION: u32 = 1;
/// Longest message. It names at most [`SOCKETS_MAX`] sockets.
const MESSAGE_MAX: usize = 64 << 10;
/// Most sockets of a message.
const SOCKETS_MAX: usize = 128;
/// Descriptors that the kernel passes with one `sendmsg` (`SCM_MAX_FD`).
const KERNEL_MAX: usize = 253;
/// What a process sees that connects to a socket without a listener.
const NO_LISTENER: [io::ErrorKind; 2] = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
/// What a process sees whose other end is gone.
const ENDED: [io::ErrorKind; 2] = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
/// The time for a message that is due: the other process only has to run.
pub const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// What the two ends say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// A new proxy asks for everything.
    Take {
        /// [`HANDOVER_VERSION`] of the sender.
        version: u32,
    },
    /// A proxy that ends gives its sockets, in the order of the descriptors.
    Keep {
        /// [`HANDOVER_VERSION`] of the sender.
        version: u32,
        /// What the descriptors are.
        sockets: Vec<Handed>,
        /// What it reaches.
        reach: Coverage,
    },
    /// The answer to `Keep`.
    Kept,
    /// The answer to `Take`: everything that there is, in the order of the descriptors.
    Offer {
        /// What the descriptors are.
        sockets: Vec<Handed>,
        /// What the proxy reaches, or reached, whose sockets these are.
        reach: Coverage,
    },
    /// No, or no longer.
    Refused {
        /// For people.
        reason: String,
    },
    /// The new proxy accepts agents, and nothing else yet.
    TakesAgents,
    /// The answer: the other proxy accepts no agents and sends its own to the new one.
    SendsAgents,
    /// The new proxy is about to accept everything.
    Serves,
    /// The answer: the other process has let go of everything.
    Yours,
}

/// What a proxy reaches. The next one waits a moment for the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// How many nodes have tunnels to it.
    pub nodes: u32,
    /// The instances of other proxies to which it has links, and which do not drain.
    pub peers: Vec<String>,
}

/// What a descriptor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// A name of [`HandedKind`]. Later versions may have others, whose descriptors are closed.
    pub kind: String,
    /// Address or path.
    pub at: String,
}

/// The kinds of descriptors that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedKind {
    /// A listening TCP socket.
    Tcp,
    /// A listening Unix socket.
    Unix,
    /// The open, locked lock file of a state directory.
    Lock,
}

impl HandedKind {
    /// The name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Lock => "lock",
        }
    }
}

/// The failures of a hand-over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The socket failed.
    #[error("the hand-over's socket failed")]
    Socket(#[source] io::Error),
    /// The other process is not root's and not of this user.
    #[error("the other process is neither root's nor of this program's user")]
    Untrusted,
    /// The other process ended, or closed the connection without a word.
    #[error("the other process ended")]
    Ended,
    /// The other process says no.
    #[error("refused: {0}")]
    Refused(String),
    /// The message does not fit.
    #[error("a message of the hand-over is too long or has too many descriptors")]
    TooLong,
    /// It is no message.
    #[error("a message of the hand-over does not parse")]
    Invalid(#[source] serde_json::Error),
    /// It is a message, but not one that is due.
    #[error("a message of the hand-over came out of turn: {0:?}")]
    OutOfTurn(Message),
    /// A message did not come in time.
    #[error("the other process said nothing in time")]
    TimedOut,
}

impl HandoverError {
    fn of(error: io::Error) -> Self {
        if ENDED.contains(&error.kind()) {
            Self::Ended
        } else {
            Self::Socket(error)
        }
    }
}

/// A connection between the two ends of a hand-over.
#[derive(Debug)]
pub struct Handover {
    stream: UnixStream,
}

impl Handover {
    /// Connects to the process that listens at `path`. `None`: no process listens.
    ///
    /// # Errors
    /// It is a process of another user than root and this program's own.
    pub async fn connect(path: &Path) -> Result<Option<Self>, HandoverError> {
        let Ok(connected) = timeout(HANDOVER_TIMEOUT, UnixStream::connect(path)).await else {
            return Err(HandoverError::TimedOut);
        };
        match connected {
            Ok(stream) if is_trusted(&stream) => Ok(Some(Self { stream })),
            Ok(_) => Err(HandoverError::Untrusted),
            Err(error) if NO_LISTENER.contains(&error.kind()) => Ok(None),
            Err(error) => Err(HandoverError::Socket(error)),
        }
    }

    /// The other end, from a [`crate::LocalSocket`] that has checked the peer.
    #[must_use]
    pub fn accepted(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Sends a message with these descriptors.
    ///
    /// # Errors
    /// It is too long, or the other process does not take it in time.
    pub async fn send(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), HandoverError> {
        let text = serde_json::to_vec(message).map_err(HandoverError::Invalid)?;
        if text.len() > MESSAGE_MAX || descriptors.len() > SOCKETS_MAX {
            return Err(HandoverError::TooLong);
        }
        let length = u32::try_from(text.len()).map_err(|_| HandoverError::TooLong)?;
        let frame = [&length.to_be_bytes()[..], &text].concat();
        timeout(HANDOVER_TIMEOUT, self.send_all(&frame, descriptors))
            .await
            .map_err(|_| HandoverError::TimedOut)?
            .map_err(HandoverError::of)
    }

    async fn send_all(
        &self,
        mut frame: &[u8],
        mut descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        while !frame.is_empty() {
            let sent = self
                .stream
                .async_io(Interest::WRITABLE, || {
                    send_some(self.stream.as_fd(), frame, descriptors)
                })
                .await?;
            // The descriptors went with the first byte.
            (frame, descriptors) = (&frame[sent..], &[]);
        }
        Ok(())
    }

    /// The next message and its descriptors. A refusal is an error.
    ///
    /// # Errors
    /// The other process ended or refuses, sends nothing in time, or no valid message.
    pub async fn receive(
        &self,
        patience: Duration,
    ) -> Result<(Message, Vec<OwnedFd>), HandoverError> {
        let received = timeout(patience, self.receive_one()).await;
        match received.map_err(|_| HandoverError::TimedOut)?? {
            (Message::Refused { reason }, _) => Err(HandoverError::Refused(reason)),
            received => Ok(received),
        }
    }

    async fn receive_one(&self) -> Result<(Message, Vec<OwnedFd>), HandoverError> {
        let mut descriptors = Vec::new();
        let mut length = [0; 4];
        self.fill(&mut length, &mut descriptors).await?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_MAX {
            return Err(HandoverError::TooLong);
        }
        let mut text = vec![0; length];
        self.fill(&mut text, &mut descriptors).await?;
        let message = serde_json::from_slice(&text).map_err(HandoverError::Invalid)?;
        Ok((message, descriptors))
    }

    async fn fill(
        &self,
        mut rest: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), HandoverError> {
        while !rest.is_empty() {
            let received = self
                .stream
                .async_io(Interest::READABLE, || {
                    receive_some(self.stream.as_fd(), rest, descriptors)
                })
                .await
                .map_err(HandoverError::of)?;
            if received == 0 {
                return Err(HandoverError::Ended);
            }
            if descriptors.len() > SOCKETS_MAX {
                return Err(HandoverError::TooLong);
            }
            rest = &mut rest[received..];
        }
        Ok(())
    }

    /// Waits for an answer, which must be `due`.
    ///
    /// # Errors
    /// As of [`Self::receive`], or it is another message.
    pub async fn expect(&self, due: &Message) -> Result<(), HandoverError> {
        match self.receive(HANDOVER_TIMEOUT).await?.0 {
            message if message == *due => Ok(()),
            other => Err(HandoverError::OutOfTurn(other)),
        }
    }

    /// Waits until the other process ends.
    pub async fn ended(&self) {
        let patience = Duration::MAX;
        while self.receive(patience).await.is_ok() {}
    }
}

fn send_some(
    socket: BorrowedFd<'_>,
    frame: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(frame)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(sent)
}

fn receive_some(
    socket: BorrowedFd<'_>,
    rest: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(rest)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn pair() -> (Handover, Handover) {
        let (near, far) = UnixStream::pair().unwrap();
        (Handover::accepted(near), Handover::accepted(far))
    }

    fn handed(count: usize) -> Vec<Handed> {
        (0..count)
            .map(|number| Handed {
                kind: HandedKind::Tcp.name().to_owned(),
                at: format!("[::]:{number}"),
            })
            .collect()
    }

    #[tokio::test]
    async fn descriptors_arrive_with_their_message_in_order() {
        let (near, far) = pair();
        let folder = tempfile::tempdir().unwrap();
        let sockets: Vec<_> = (0..100)
            .map(|number| UnixListener::bind(folder.path().join(number.to_string())).unwrap())
            .collect();
        let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        let offer = Message::Offer {
            sockets: handed(sockets.len()),
            reach: Coverage::default(),
        };
        near.send(&Message::TakesAgents, &[]).await.unwrap();
        near.send(&offer, &descriptors).await.unwrap();
        near.send(&Message::Yours, &[]).await.unwrap();
        far.expect(&Message::TakesAgents).await.unwrap();
        let (message, received) = far.receive(HANDOVER_TIMEOUT).await.unwrap();
        assert_eq!(message, offer);
        for (number, descriptor) in received.into_iter().enumerate() {
            let address = UnixListener::from(descriptor).local_addr().unwrap();
            let name = address.as_pathname().unwrap().file_name().unwrap();
            assert_eq!(name, number.to_string().as_str());
        }
        far.expect(&Message::Yours).await.unwrap();
    }

    #[tokio::test]
    async fn too_much_is_refused_at_both_ends() {
        let (near, far) = pair();
        let socket = near.stream.as_fd();
        let many = vec![socket; SOCKETS_MAX + 1];
        let sent = near.send(&Message::Kept, &many).await;
        assert!(matches!(sent, Err(HandoverError::TooLong)));
        let long = Message::Refused {
            reason: "x".repeat(MESSAGE_MAX),
        };
        let sent = near.send(&long, &[]).await;
        assert!(matches!(sent, Err(HandoverError::TooLong)));
        let length = u32::try_from(MESSAGE_MAX + 1).unwrap().to_be_bytes();
        near.send_all(&length, &[]).await.unwrap();
        let received = far.receive(HANDOVER_TIMEOUT).await;
        assert!(matches!(received, Err(HandoverError::TooLong)));
        let (near, far) = pair();
        let many = vec![near.stream.as_fd(); SOCKETS_MAX + 1];
        near.send_all(&[0, 0, 0, 2, b'{', b'}'], &many)
            .await
            .unwrap();
        let received = far.receive(HANDOVER_TIMEOUT).await;
        assert!(matches!(received, Err(HandoverError::TooLong)));
    }

    #[tokio::test]
    async fn an_end_a_refusal_silence_and_nonsense_are_told_apart() {
        let short = Duration::from_millis(20);
        let (near, far) = pair();
        assert!(matches!(
            far.receive(short).await,
            Err(HandoverError::TimedOut)
        ));
        near.send_all(b"\0\0\0\x02no", &[]).await.unwrap();
        assert!(matches!(
            far.receive(HANDOVER_TIMEOUT).await,
            Err(HandoverError::Invalid(_))
        ));
        let reason = "not now".to_owned();
        near.send(&Message::Refused { reason }, &[]).await.unwrap();
        let refused = far.receive(HANDOVER_TIMEOUT).await;
        assert!(matches!(refused, Err(HandoverError::Refused(reason)) if reason == "not now"));
        near.send(&Message::Kept, &[]).await.unwrap();
        let other = far.expect(&Message::Yours).await;
        assert!(matches!(
            other,
            Err(HandoverError::OutOfTurn(Message::Kept))
        ));
        drop(near);
        let ended = far.receive(HANDOVER_TIMEOUT).await;
        assert!(matches!(ended, Err(HandoverError::Ended)));
    }

    #[tokio::test]
    async fn where_nobody_listens_there_is_nobody_to_ask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover.sock");
        assert!(Handover::connect(&path).await.unwrap().is_none());
        drop(UnixListener::bind(&path).unwrap());
        assert!(Handover::connect(&path).await.unwrap().is_none());
    }
}
