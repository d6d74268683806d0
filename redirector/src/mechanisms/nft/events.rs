//! The kernel's notifications of changes to the table, so that a flushed table is back in
//! milliseconds, not at the next inspection.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use tokio::time::{Instant, sleep_until};

use super::table::TABLE;

/// `NFNLGRP_NFTABLES` of linux/netfilter/nfnetlink.h: every change of a table, with its name.
const CHANGES_OF_TABLES: u32 = 7;
/// Longest message of the kernel.
const LONGEST_MESSAGE: usize = 64 << 10;
/// Shortest pause between two inspections, in case another program changes or removes the table all
/// the time.
const QUIET: Duration = Duration::from_millis(250);

/// Changes of the table, including the redirector's own.
pub(crate) struct Events {
    socket: Option<TokioSocket>,
    touched: bool,
    not_before: Instant,
}

impl Events {
    /// Listens from now on. Without permission it never reports anything; inspections at intervals
    /// remain.
    pub(crate) fn listen() -> Self {
        let socket = subscribe();
        if let Err(error) = &socket {
            tracing::warn!(
                %error,
                "nftables' changes cannot be followed; the table is looked at every few seconds"
            );
        }
        Self {
            socket: socket.ok(),
            touched: false,
            not_before: Instant::now(),
        }
    }

    /// Waits until the table was changed. Safe to drop while it waits.
    pub(crate) async fn touched(&mut self) {
        let Some(socket) = &self.socket else {
            return std::future::pending().await;
        };
        while !self.touched {
            let mut message = Vec::with_capacity(LONGEST_MESSAGE);
            // An error means that messages were lost, perhaps one about our table.
            self.touched = socket.recv(&mut message).await.is_err() || is_of_ours(&message);
        }
        sleep_until(self.not_before).await;
        self.touched = false;
        self.not_before = Instant::now() + QUIET;
    }
}

fn subscribe() -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
    socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
    socket.socket_mut().add_membership(CHANGES_OF_TABLES)?;
    Ok(socket)
}

/// Whether a message contains our table's name. A false match costs one inspection.
fn is_of_ours(message: &[u8]) -> bool {
    message
        .windows(TABLE.len() + 1)
        .any(|bytes| bytes.split_last() == Some((&0, TABLE.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_of_our_table_if_it_has_its_name_whole() {
        assert!(is_of_ours(b"\x0c\x00\x01\x00culvert\x00\x08"));
        for other in [
            &b"\x0c\x00\x01\x00culverts\x00"[..],
            b"filter\x00",
            b"culvert",
            b"",
        ] {
            assert!(!is_of_ours(other), "{other:?}");
        }
    }
}
