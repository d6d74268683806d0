//! The proxy that runs: gives everything to a successor on this host. Until the successor serves,
//! this proxy goes on as if nothing were, but changes nothing on disk.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{
    Drain, HANDOVER_TIMEOUT, HANDOVER_VERSION, Handed, Handover, HandoverError, Listeners,
    LocalSocket, Message, SocketUse, chain,
};
use culvert_proxy_core::state::{Frozen, StateDir};
use culvert_proxy_streams::registry::Registry;
use culvert_proxy_streams::sockets::listen::AgentTarget;
use culvert_proxy_trust::{Trust, TrustError};

use super::departure::Departure;

/// The time that a successor has for each of its steps: to read its state, to reach the API server,
/// and to get the agents' tunnels.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const EVERYTHING: [SocketUse; 4] = [
    SocketUse::Agents,
    SocketUse::Clients,
    SocketUse::Programs,
    SocketUse::Admin,
];

/// The reason why a hand-over ended early.
#[derive(Debug, thiserror::Error)]
enum GiveError {
    #[error(transparent)]
    Handover(#[from] HandoverError),
    #[error("the new proxy speaks version {0} of the hand-over, this one {HANDOVER_VERSION}")]
    Version(u32),
    #[error("copy the listening sockets")]
    Copy(#[source] io::Error),
    #[error("write down the certificates that were seen")]
    Trust(#[from] TrustError),
    #[error("a task failed")]
    Task(#[from] tokio::task::JoinError),
}

/// What a successor gets.
pub(crate) struct Giver {
    pub(crate) listeners: Listeners,
    pub(crate) state: StateDir,
    pub(crate) trust: Trust,
    pub(crate) registry: Registry,
    pub(crate) departure: Departure,
    pub(crate) drain: Drain,
}

impl Giver {
    /// Waits for a successor, one after the other, until one has everything. Never ends by itself.
    pub(crate) async fn serve(self, socket: LocalSocket) -> Result<()> {
        loop {
            let link = match socket.accept().await {
                Ok(stream) => Handover::accepted(stream),
                Err(error) => {
                    tracing::debug!(%error, "accept a successor");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match self.hand_over(&link).await {
                Ok(()) => {
                    tracing::info!("another proxy serves in this one's place");
                    self.departure.succeeded_by(link);
                    self.drain.start();
                    drop(socket);
                    return std::future::pending().await;
                }
                Err(error) => {
                    let reason = chain(&error);
                    tracing::warn!(reason, "no other proxy took this one's place; it goes on");
                    // The other end may be gone.
                    let _told = link.send(&Message::Refused { reason }, &[]).await;
                }
            }
        }
    }

    async fn hand_over(&self, link: &Handover) -> Result<(), GiveError> {
        match link.receive(HANDOVER_TIMEOUT).await? {
            (Message::Take { version }, _) if version != HANDOVER_VERSION => {
                return Err(GiveError::Version(version));
            }
            (Message::Take { .. }, _) => {}
            (other, _) => return Err(HandoverError::OutOfTurn(other).into()),
        }
        tracing::info!("another proxy is about to take this one's place");
        let _giving = self.departure.giving();
        let frozen = self.freeze().await?;
        let given = self.offer(link).await;
        if given.is_err() {
            self.listeners.reclaim(&EVERYTHING);
            if !self.drain.is_leaving() {
                self.departure.send_agents(AgentTarget::ThisProxy);
            }
        }
        given?;
        self.listeners.release(&EVERYTHING);
        frozen.for_ever();
        Ok(())
    }

    /// Writes what waits to be written, and from then on nothing.
    async fn freeze(&self) -> Result<Frozen, GiveError> {
        let state = self.state.clone();
        let trust = self.trust.clone();
        tokio::task::spawn_blocking(move || {
            trust.write_ledger()?;
            Ok(state.freeze())
        })
        .await?
    }

    /// Copies of all listening sockets, and of the lock on the state.
    fn copies(&self) -> io::Result<(Vec<Handed>, Vec<OwnedFd>)> {
        let (mut sockets, mut descriptors) = self.listeners.offer(&EVERYTHING)?;
        if let Some((lock, descriptor)) = self.state.lock_copy()? {
            sockets.push(lock);
            descriptors.push(descriptor);
        }
        Ok((sockets, descriptors))
    }

    async fn offer(&self, link: &Handover) -> Result<(), GiveError> {
        let (sockets, descriptors) = self.copies().map_err(GiveError::Copy)?;
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let reach = self.registry.reach();
        link.send(&Message::Offer { sockets, reach }, &borrowed)
            .await?;
        loop {
            match link.receive(STEP_TIMEOUT).await? {
                (Message::TakesAgents, _) => {
                    self.departure.send_agents(AgentTarget::Others);
                    link.send(&Message::SendsAgents, &[]).await?;
                }
                (Message::Serves, _) => return Ok(link.send(&Message::Yours, &[]).await?),
                (other, _) => return Err(HandoverError::OutOfTurn(other).into()),
            }
        }
    }
}
