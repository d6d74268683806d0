//! Keeps tunnels to the listed proxies. The list may change while the agent runs: a new proxy gets
//! tunnels, and tunnels to a removed proxy end with their streams. If the removed proxy answers and
//! no listed one does, the list may be wrong: the removed one is kept until a listed one answers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_api::HostPort;
use culvert_daemon::{Drain, Workers};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::tunnels::slot::{Shared, TunnelSlot};
use crate::tunnels::states::{SlotName, Tunnels};

/// What the agent needs to keep tunnels.
pub(crate) struct TunnelKeeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) all: Tunnels,
    /// Tunnels to each proxy.
    pub(crate) tunnels: u8,
    /// Each tunnel runs on one of these threads, with its streams.
    pub(crate) workers: Arc<Workers>,
}

impl TunnelKeeper {
    /// Keeps tunnels to the proxies until the drain begins, then waits until they end.
    pub(crate) async fn run(
        self,
        mut proxies: watch::Receiver<Vec<HostPort>>,
        drain: Drain,
    ) -> Result<()> {
        let mut tasks = JoinSet::new();
        let mut kept: BTreeMap<HostPort, KeptProxy> = BTreeMap::new();
        let mut answering = self.all.answering();
        while !drain.has_begun() {
            let listed = distinct(proxies.borrow_and_update().clone());
            let answer = answering.borrow_and_update().clone();
            kept.retain(|proxy, kept| {
                let before = kept.listing;
                kept.listing = relisted(proxy, before, &listed, &answer);
                match kept.listing {
                    Listing::Listed => {}
                    Listing::Former if before == Listing::Former => {}
                    Listing::Former => {
                        tracing::warn!(%proxy, "the proxy was removed from the list, but no \
                        listed one answers: its tunnels stay until one does")
                    }
                    Listing::Removed => {
                        tracing::info!(
                            %proxy,
                            "the proxy was removed from the list: its tunnels end with their streams"
                        );
                        kept.drain.begin();
                    }
                }
                kept.listing != Listing::Removed
            });
            for proxy in listed {
                kept.entry(proxy.clone())
                    .or_insert_with(|| self.keep(&proxy, &mut tasks));
            }
            tokio::select! {
                Ok(()) = proxies.changed() => {}
                Ok(()) = answering.changed() => {}
                Some(ended) = tasks.join_next() => ended.context("a tunnel's task panicked")?,
                () = drain.begun() => {}
            }
        }
        kept.values().for_each(|kept| kept.drain.begin());
        while let Some(ended) = tasks.join_next().await {
            ended.context("a tunnel's task panicked")?;
        }
        Ok(())
    }

    /// Starts the tunnels to one proxy. They are kept until the drain of the returned value begins.
    fn keep(&self, proxy: &HostPort, tasks: &mut JoinSet<()>) -> KeptProxy {
        let drain = Drain::default();
        for number in 0..self.tunnels {
            let name = SlotName {
                proxy: proxy.clone(),
                number,
            };
            let slot = TunnelSlot {
                entry: self.all.entry(name.clone()),
                name,
                shared: self.shared.clone(),
            };
            tasks.spawn_on(slot.run(drain.clone()), self.workers.next().handle());
        }
        KeptProxy {
            drain,
            listing: Listing::Listed,
        }
    }
}

/// A proxy to which tunnels are kept.
struct KeptProxy {
    drain: Drain,
    listing: Listing,
}

/// Whether a proxy is still listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    Listed,
    /// It was removed from the list while it answered, and no listed proxy has answered since.
    Former,
    Removed,
}

fn relisted(
    proxy: &HostPort,
    before: Listing,
    listed: &[HostPort],
    answering: &BTreeSet<HostPort>,
) -> Listing {
    let replaced = listed.iter().any(|proxy| answering.contains(proxy));
    match before {
        _ if listed.contains(proxy) => Listing::Listed,
        _ if replaced => Listing::Removed,
        Listing::Former => Listing::Former,
        Listing::Listed if answering.contains(proxy) => Listing::Former,
        Listing::Listed | Listing::Removed => Listing::Removed,
    }
}

/// Removes duplicates: two equal slots would supersede each other at the proxy for ever.
pub(crate) fn distinct(mut proxies: Vec<HostPort>) -> Vec<HostPort> {
    let mut seen = HashSet::new();
    proxies.retain(|proxy| seen.insert(proxy.clone()));
    proxies
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use culvert_daemon::Readiness;
    use culvert_tunnel::{Budget, FarEnd, ProxyTunnel};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::test_proxy::TestProxy;

    #[test]
    fn a_proxy_named_twice_gets_its_tunnels_once() {
        let named =
            ["p:1", "P:1", "[::1]:1", "q:1", "[0:0::1]:1"].map(|text| text.parse().unwrap());
        let distinct: Vec<_> = distinct(named.into())
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(distinct, ["p:1", "[::1]:1", "q:1"]);
    }

    #[test]
    fn a_former_proxy_is_kept_only_for_want_of_another() {
        let [a, b, c] = ["a:1", "b:1", "c:1"].map(|text| text.parse::<HostPort>().unwrap());
        let relisted = |before, listed: &[&HostPort], answering: &[&HostPort]| {
            let listed: Vec<_> = listed.iter().copied().cloned().collect();
            super::relisted(
                &a,
                before,
                &listed,
                &answering.iter().copied().cloned().collect(),
            )
        };
        assert_eq!(relisted(Listing::Listed, &[&a], &[]), Listing::Listed);
        assert_eq!(
            relisted(Listing::Listed, &[&b], &[]),
            Listing::Removed,
            "it did not answer either"
        );
        assert_eq!(relisted(Listing::Listed, &[&b], &[&a]), Listing::Former);
        assert_eq!(
            relisted(Listing::Former, &[&b], &[]),
            Listing::Former,
            "its tunnel may come back"
        );
        assert_eq!(
            relisted(Listing::Former, &[&b], &[&a, &c]),
            Listing::Former,
            "another former one is no better"
        );
        assert_eq!(
            relisted(Listing::Former, &[&b, &c], &[&a, &c]),
            Listing::Removed
        );
        assert_eq!(relisted(Listing::Former, &[&a], &[]), Listing::Listed);
    }

    /// An agent in a test, with its only tunnel to each proxy.
    struct Agent {
        all: Tunnels,
        proxies: watch::Sender<Vec<HostPort>>,
        drain: Drain,
        task: JoinSet<Result<()>>,
        _root: tempfile::TempDir,
    }

    impl Agent {
        fn start(proxy: &TestProxy) -> Self {
            let root = tempfile::tempdir().unwrap();
            let shared = Arc::new(Shared::for_tests(proxy, root.path()));
            let all = Tunnels::new(Readiness::default().gate("tunnel"));
            let proxies = watch::Sender::new(vec![proxy.address.clone()]);
            let drain = Drain::default();
            let workers = Workers::start(NonZeroUsize::MIN).unwrap();
            let keeper = TunnelKeeper {
                shared,
                all: all.clone(),
                tunnels: 1,
                workers,
            };
            let mut task = JoinSet::new();
            task.spawn(keeper.run(proxies.subscribe(), drain.clone()));
            Self {
                all,
                proxies,
                drain,
                task,
                _root: root,
            }
        }

        /// Waits until the tunnels are in these states; each pair is a proxy and its state.
        async fn until(&self, expected: &[(&HostPort, &str)]) {
            let expected: BTreeSet<_> = expected
                .iter()
                .map(|(proxy, state)| (format!("{proxy}/0"), *state))
                .collect();
            let now = || -> BTreeSet<_> {
                self.all
                    .tunnels()
                    .iter()
                    .map(|view| (view.tunnel.clone(), view.state))
                    .collect()
            };
            let wait = async {
                while now() != expected {
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(10), wait)
                .await
                .unwrap_or_else(|_| panic!("{:?}, not {expected:?}", now()));
        }

        async fn end(mut self) {
            self.drain.begin();
            timeout(Duration::from_secs(10), self.task.join_next())
                .await
                .unwrap()
                .unwrap()
                .unwrap()
                .unwrap();
        }
    }

    /// Accepts the proxy's next tunnel and keeps it up.
    async fn take(proxy: &mut TestProxy) -> JoinSet<()> {
        let tunnel = timeout(Duration::from_secs(10), proxy.tunnel_rx.recv())
            .await
            .unwrap()
            .unwrap();
        let last_read = tunnel.get_ref().0.last_read();
        let settings = ProxyTunnel {
            far_end: FarEnd::Agent,
            stream_window: 1 << 20,
            max_streams: 8,
            streams_in_life: 1 << 29,
            budget: Budget::new(1 << 20),
        };
        let (tunnel, driver) = settings.establish(tunnel, last_read).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let _ended = driver.run().await;
            drop(tunnel);
        });
        task
    }

    #[tokio::test]
    async fn a_proxy_that_comes_gets_a_tunnel_and_one_that_goes_is_left() {
        let mut first = TestProxy::start().await;
        let mut second = TestProxy::with_agents_of(first.authority.clone(), None).await;
        let agent = Agent::start(&first);
        let _former = take(&mut first).await;
        agent.until(&[(&first.address, "up")]).await;
        agent.proxies.send_replace(vec![second.address.clone()]);
        let _latter = take(&mut second).await;
        agent.until(&[(&second.address, "up")]).await;
        agent.end().await;
    }

    #[tokio::test]
    async fn a_list_of_proxies_that_do_not_answer_leaves_the_one_that_does() {
        let mut good = TestProxy::start().await;
        let mut other = TestProxy::with_agents_of(good.authority.clone(), None).await;
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wrong: HostPort = silent.local_addr().unwrap().to_string().parse().unwrap();
        let agent = Agent::start(&good);
        let _good = take(&mut good).await;
        agent.until(&[(&good.address, "up")]).await;
        agent.proxies.send_replace(vec![wrong.clone()]);
        for _attempt in 0..2 {
            drop(
                timeout(Duration::from_secs(10), silent.accept())
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        agent
            .until(&[(&good.address, "up"), (&wrong, "waiting")])
            .await;
        agent
            .proxies
            .send_replace(vec![wrong.clone(), other.address.clone()]);
        let _other = take(&mut other).await;
        agent.proxies.send_replace(vec![other.address.clone()]);
        agent.until(&[(&other.address, "up")]).await;
        agent.end().await;
    }
}
