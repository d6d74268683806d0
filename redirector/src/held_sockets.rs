//! Keeps the listening sockets of clients between two proxies of this host: a proxy that ends gives
//! them, and the next one takes them. Meanwhile connections wait in the sockets' queues. A proxy
//! that was killed has given nothing, so its clients are refused at once.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{
    Coverage, Drain, HANDOVER_TIMEOUT, HANDOVER_VERSION, Handed, Handover, HandoverError,
    LISTENER_FAMILIES, LocalSocket, Message, chain, is_listener,
};
use tokio::time::Instant;

/// How long sockets are kept. A proxy restarts within a few seconds; the next pod of a busy node
/// takes longer. Many clients wait no longer for a connection.
pub(crate) const KEEP: Duration = Duration::from_secs(30);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The sockets of a proxy that has ended.
struct HeldSockets {
    sockets: Vec<(Handed, OwnedFd)>,
    reach: Coverage,
    until: Instant,
}

/// Serves proxies until the drain begins and nothing is kept.
pub(crate) async fn serve(socket: LocalSocket, drain: Drain) -> Result<()> {
    serve_for(&socket, KEEP, &drain).await;
    Ok(())
}

/// A redirector that keeps sockets ends a little later.
async fn serve_for(socket: &LocalSocket, patience: Duration, drain: &Drain) {
    let mut held = None;
    loop {
        let link = tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok(stream) => Handover::accepted(stream),
                Err(error) => {
                    tracing::debug!(%error, "accept a proxy");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = drain.begun(), if held.is_none() => return,
            () = over(held.as_ref()) => {
                tracing::warn!("no proxy came for the sockets of clients: these are refused now");
                held = None;
                continue;
            }
        };
        if let Err(error) = serve_one(&link, &mut held, patience).await {
            let reason = chain(&error);
            tracing::warn!(reason, "the sockets of clients were not handed over");
            // The other end may be gone.
            let _told = link.send(&Message::Refused { reason }, &[]).await;
        }
    }
}

/// Completes at the end of the time.
async fn over(held: Option<&HeldSockets>) {
    match held {
        Some(held) => tokio::time::sleep_until(held.until).await,
        None => std::future::pending().await,
    }
}

async fn serve_one(
    link: &Handover,
    held: &mut Option<HeldSockets>,
    patience: Duration,
) -> Result<(), HandoverError> {
    match link.receive(HANDOVER_TIMEOUT).await? {
        (Message::Keep { version, .. } | Message::Take { version }, _)
            if version != HANDOVER_VERSION =>
        {
            Err(HandoverError::Refused(format!(
                "this redirector speaks version {HANDOVER_VERSION} of the hand-over"
            )))
        }
        (Message::Keep { sockets, reach, .. }, descriptors) => {
            let mut listeners = Vec::new();
            for (handed, socket) in sockets.into_iter().zip(descriptors) {
                if is_listener(&socket, &LISTENER_FAMILIES) {
                    listeners.push((handed, socket));
                }
            }
            tracing::info!(sockets = listeners.len(), "keeping the sockets of clients");
            *held = Some(HeldSockets {
                sockets: listeners,
                reach,
                until: Instant::now() + patience,
            });
            link.send(&Message::Kept, &[]).await
        }
        (Message::Take { .. }, _) => hand_over(link, held).await,
        (other, _) => Err(HandoverError::OutOfTurn(other)),
    }
}

/// Gives the sockets, and forgets them when the proxy serves. If it ends before that, another one
/// may come for them.
async fn hand_over(link: &Handover, held: &mut Option<HeldSockets>) -> Result<(), HandoverError> {
    let mut sockets = Vec::new();
    let mut descriptors = Vec::new();
    let Some(offered) = held else {
        let reach = Coverage::default();
        return link.send(&Message::Offer { sockets, reach }, &[]).await;
    };
    for (handed, descriptor) in &offered.sockets {
        sockets.push(handed.clone());
        descriptors.push(descriptor.as_fd());
    }
    let reach = offered.reach.clone();
    let offer = Message::Offer { sockets, reach };
    link.send(&offer, &descriptors).await?;
    let left = offered.until.saturating_duration_since(Instant::now());
    match link.receive(left).await {
        Ok((Message::Serves, _)) => {
            *held = None;
            tracing::info!("the next proxy has the sockets of clients");
            link.send(&Message::Yours, &[]).await
        }
        Ok((other, _)) => Err(HandoverError::OutOfTurn(other)),
        // Its own descriptors keep the sockets open now.
        Err(HandoverError::TimedOut) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use culvert_daemon::{Listeners, SocketAccess, SocketUse};

    use super::*;

    /// Runs `test` beside a redirector that keeps sockets for this long.
    async fn with_redirector(patience: Duration, test: impl AsyncFnOnce(&std::path::Path)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover.sock");
        let socket = LocalSocket::bind(&path, SocketAccess::Owner).unwrap();
        let never = Drain::default();
        tokio::select! {
            () = serve_for(&socket, patience, &never) => unreachable!("it serves for ever"),
            () = test(&path) => {}
        }
    }

    async fn connect(path: &std::path::Path) -> Handover {
        Handover::connect(path).await.unwrap().unwrap()
    }

    fn keep_message(sockets: Vec<Handed>) -> Message {
        Message::Keep {
            version: HANDOVER_VERSION,
            sockets,
            reach: Coverage::default(),
        }
    }

    /// What a proxy does that ends: afterwards only the redirector has its socket.
    async fn leave(path: &std::path::Path) -> SocketAddr {
        let listeners = Listeners::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let bind = || Ok(listener);
        drop(listeners.tcp(address, SocketUse::Clients, bind).unwrap());
        let (sockets, descriptors) = listeners.offer(&[SocketUse::Clients]).unwrap();
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let link = connect(path).await;
        let keep = keep_message(sockets);
        link.send(&keep, &descriptors).await.unwrap();
        link.expect(&Message::Kept).await.unwrap();
        address
    }

    /// What the next proxy gets.
    async fn receive_offer(path: &std::path::Path) -> (Handover, Vec<Handed>, Vec<OwnedFd>) {
        let link = connect(path).await;
        let take = Message::Take {
            version: HANDOVER_VERSION,
        };
        link.send(&take, &[]).await.unwrap();
        let (offer, descriptors) = link.receive(HANDOVER_TIMEOUT).await.unwrap();
        let Message::Offer { sockets, .. } = offer else {
            panic!("{offer:?}")
        };
        (link, sockets, descriptors)
    }

    #[tokio::test]
    async fn a_client_waits_for_the_next_proxy_even_if_one_dies_on_the_way() {
        with_redirector(KEEP, async |path| {
            let address = leave(path).await;
            let waiting = TcpStream::connect(address).unwrap();
            drop(receive_offer(path).await);
            let (link, sockets, descriptors) = receive_offer(path).await;
            assert_eq!(sockets[0].at, address.to_string());
            link.send(&Message::Serves, &[]).await.unwrap();
            link.expect(&Message::Yours).await.unwrap();
            let listener = TcpListener::from(descriptors.into_iter().next().unwrap());
            let (_, client) = listener.accept().unwrap();
            assert_eq!(client, waiting.local_addr().unwrap());
            drop(listener);
            TcpStream::connect(address).expect_err("the redirector has forgotten it");
            assert!(receive_offer(path).await.1.is_empty());
        })
        .await;
    }

    #[tokio::test]
    async fn clients_are_refused_when_no_proxy_comes() {
        with_redirector(Duration::from_millis(100), async |path| {
            let address = leave(path).await;
            // The redirector runs on this thread, so no connect may block it.
            let connect = || tokio::net::TcpStream::connect(address);
            connect().await.expect("it waits");
            while connect().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(receive_offer(path).await.1.is_empty());
        })
        .await;
    }

    #[tokio::test]
    async fn only_listening_sockets_are_kept() {
        with_redirector(KEEP, async |path| {
            let file = std::fs::File::open("/dev/null").unwrap();
            let handed = Handed {
                kind: "tcp".to_owned(),
                at: "[::]:7410".to_owned(),
            };
            let link = connect(path).await;
            let keep = keep_message(vec![handed]);
            link.send(&keep, &[file.as_fd()]).await.unwrap();
            link.expect(&Message::Kept).await.unwrap();
            assert!(receive_offer(path).await.1.is_empty());
        })
        .await;
    }
}
