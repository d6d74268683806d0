//! A proxy that starts: takes the place of the one that runs on this host, and gets from the
//! redirector what an earlier proxy left there. Without either it starts as the first one.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use culvert_daemon::{
    Coverage, HANDOVER_VERSION, Handover, HandoverError, Listeners, Message, chain,
};
use culvert_proxy_streams::registry::Registry;
use tokio::time::timeout;

/// The time in which the running proxy writes its state down.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which agents set up tunnels to this proxy before it takes the clients of the one that
/// runs. Meanwhile they keep those to the other one: `OVERLAP` of the agent is longer. An agent that
/// is slower sets its tunnels up when those to the other proxy end.
const COME_TIMEOUT: Duration = Duration::from_secs(15);
/// The same where clients wait for this proxy: some of their time-outs are short.
const RETURN_TIMEOUT: Duration = Duration::from_secs(3);

/// The taking over, from the first question to the moment in which this proxy serves.
pub(crate) struct Takeover {
    predecessor: Option<Offerer>,
    redirector: Option<Offerer>,
    listeners: Listeners,
}

/// A process that offers sockets.
struct Offerer {
    link: Handover,
    /// What the proxy reaches that runs, or reached that ran before.
    reach: Coverage,
}

impl Takeover {
    /// Asks the proxy that runs, and the redirector.
    pub(crate) async fn ask(predecessor: &Path, redirector: &Path) -> Self {
        let listeners = Listeners::default();
        Self {
            predecessor: ask(predecessor, &listeners).await,
            redirector: ask(redirector, &listeners).await,
            listeners,
        }
    }

    /// The sockets that were taken over.
    pub(crate) fn listeners(&self) -> Listeners {
        self.listeners.clone()
    }

    /// Whether another proxy runs until [`Self::confirm`].
    pub(crate) fn has_predecessor(&self) -> bool {
        self.predecessor.is_some()
    }

    /// Tells the running proxy that this one accepts agents, and waits until this one reaches as
    /// much.
    pub(crate) async fn reach(&self, registry: &Registry) -> Result<(), HandoverError> {
        let (reach, patience) = match (&self.predecessor, &self.redirector) {
            (Some(Offerer { link, reach }), _) => {
                match say(link, &Message::TakesAgents, &Message::SendsAgents).await {
                    Ok(()) => (reach, COME_TIMEOUT),
                    Err(HandoverError::Ended) => (reach, RETURN_TIMEOUT),
                    Err(error) => return Err(error),
                }
            }
            (None, Some(redirector)) => (&redirector.reach, RETURN_TIMEOUT),
            (None, None) => return Ok(()),
        };
        if timeout(patience, registry.reaches(reach)).await.is_err() {
            let here = registry.reach();
            tracing::warn!(
                nodes = reach.nodes,
                nodes.here = here.nodes,
                peers = reach.peers.len(),
                peers.here = here.peers.len(),
                "serving before all agents have tunnels to this proxy, and all proxies links"
            );
        }
        Ok(())
    }

    /// Tells the others that this proxy serves. When it returns, everything is this one's alone:
    /// by their word, or because they have ended.
    pub(crate) async fn confirm(&self) -> Result<()> {
        if let Some(Offerer { link, .. }) = &self.predecessor {
            confirm(link)
                .await
                .context("the proxy that runs on this host does not let this one serve")?;
            tracing::info!("this proxy serves in the other one's place");
        }
        if let Some(Offerer { link, .. }) = &self.redirector
            && let Err(error) = confirm(link).await
        {
            // It forgets them soon.
            tracing::debug!(
                reason = chain(&error),
                "the redirector keeps copies of sockets"
            );
        }
        self.listeners.own();
        Ok(())
    }

    /// Holds the connection to the other proxy for as long as this process lives: by its end the
    /// other one sees that it is needed again.
    pub(crate) async fn stay_connected(self) -> Result<()> {
        let _held = self.predecessor;
        std::future::pending().await
    }
}

async fn ask(path: &Path, listeners: &Listeners) -> Option<Offerer> {
    match try_ask(path, listeners).await {
        Ok(offerer) => offerer,
        Err(error) => {
            tracing::warn!(
                socket = %path.display(),
                reason = chain(&error),
                "nothing is taken over from the process that listens there"
            );
            None
        }
    }
}

async fn try_ask(path: &Path, listeners: &Listeners) -> Result<Option<Offerer>, HandoverError> {
    let Some(link) = Handover::connect(path).await? else {
        return Ok(None);
    };
    let take = Message::Take {
        version: HANDOVER_VERSION,
    };
    link.send(&take, &[]).await?;
    match link.receive(OFFER_TIMEOUT).await? {
        (Message::Offer { sockets, reach }, descriptors) => {
            tracing::info!(
                socket = %path.display(),
                sockets = descriptors.len(),
                "taking over listening sockets"
            );
            listeners.inherit(sockets, descriptors);
            Ok(Some(Offerer { link, reach }))
        }
        (other, _) => Err(HandoverError::OutOfTurn(other)),
    }
}

/// Says `message` and waits for `answer`. [`HandoverError::Ended`]: the other process has died.
/// One that gives up says so before it hangs up, and that word is there although this one's is not
/// taken any more.
async fn say(link: &Handover, message: &Message, answer: &Message) -> Result<(), HandoverError> {
    match link.send(message, &[]).await {
        Ok(()) | Err(HandoverError::Ended) => link.expect(answer).await,
        Err(error) => Err(error),
    }
}

async fn confirm(link: &Handover) -> Result<(), HandoverError> {
    match say(link, &Message::Serves, &Message::Yours).await {
        Ok(()) | Err(HandoverError::Ended) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Handover, Handover) {
        let (one, other) = UnixStream::pair().unwrap();
        (Handover::accepted(one), Handover::accepted(other))
    }

    #[tokio::test]
    async fn a_proxy_that_gave_up_is_not_taken_for_one_that_died() {
        let (own, other) = pair();
        let reason = "the other process said nothing in time".to_owned();
        other.send(&Message::Refused { reason }, &[]).await.unwrap();
        drop(other);
        let confirmed = confirm(&own).await;
        assert!(
            matches!(&confirmed, Err(HandoverError::Refused(reason)) if reason.contains("in time")),
            "{confirmed:?}"
        );
    }

    #[tokio::test]
    async fn a_proxy_that_died_leaves_everything() {
        let (own, other) = pair();
        drop(other);
        confirm(&own).await.unwrap();
    }
}
