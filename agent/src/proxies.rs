//! The proxies that tunnels are kept to. They may change while the agent runs: tunnels to a new one are set up, and those to one
//! that is no more end once their streams have.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_daemon::{Drain, Workers};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::proxy_address::ProxyAddress;
use crate::slot::{Shared, Slot};
use crate::tunnels::{SlotName, Tunnels};

/// What tunnels are made of.
pub(crate) struct Tunnelling {
    pub(crate) shared: Arc<Shared>,
    pub(crate) all: Tunnels,
    /// To each proxy.
    pub(crate) tunnels: u8,
    /// Each tunnel lives on one of them, with its streams.
    pub(crate) workers: Arc<Workers>,
}

impl Tunnelling {
    /// Keeps tunnels to the proxies until the drain begins, and lets them end then.
    pub(crate) async fn run(self, mut proxies: watch::Receiver<Vec<ProxyAddress>>, drain: Drain) -> Result<()> {
        let mut tasks = JoinSet::new();
        let mut kept: BTreeMap<ProxyAddress, Drain> = BTreeMap::new();
        while !drain.has_begun() {
            let wanted = distinct(proxies.borrow_and_update().clone());
            kept.retain(|proxy, drain| {
                let stays = wanted.contains(proxy);
                if !stays {
                    tracing::info!(%proxy, "the proxy is no more: its tunnels end with their streams");
                    drain.begin();
                }
                stays
            });
            for proxy in wanted {
                kept.entry(proxy.clone()).or_insert_with(|| self.keep(&proxy, &mut tasks));
            }
            tokio::select! {
                Ok(()) = proxies.changed() => {}
                Some(ended) = tasks.join_next() => ended.context("a tunnel's task panicked")?,
                () = drain.begun() => {}
            }
        }
        kept.values().for_each(Drain::begin);
        while let Some(ended) = tasks.join_next().await {
            ended.context("a tunnel's task panicked")?;
        }
        Ok(())
    }

    /// Keeps the tunnels to one proxy, until what is returned says otherwise.
    fn keep(&self, proxy: &ProxyAddress, tasks: &mut JoinSet<()>) -> Drain {
        let drain = Drain::default();
        for number in 0..self.tunnels {
            let name = SlotName { proxy: proxy.clone(), number };
            let slot = Slot { place: self.all.place(name.clone()), name, shared: self.shared.clone() };
            tasks.spawn_on(slot.run(drain.clone()), self.workers.next().handle());
        }
        drain
    }
}

/// Two equal slots would supersede each other at the proxy for ever.
pub(crate) fn distinct(mut proxies: Vec<ProxyAddress>) -> Vec<ProxyAddress> {
    let mut seen = HashSet::new();
    proxies.retain(|proxy| seen.insert(proxy.clone()));
    proxies
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use culvert_daemon::Readiness;
    use tokio::time::timeout;

    use super::*;
    use crate::test_proxy::TestProxy;

    #[test]
    fn a_proxy_named_twice_gets_its_tunnels_once() {
        let named = ["p:1", "P:1", "[::1]:1", "q:1", "[0:0::1]:1"].map(|text| text.parse().unwrap());
        let distinct: Vec<_> = distinct(named.into()).iter().map(ToString::to_string).collect();
        assert_eq!(distinct, ["p:1", "[::1]:1", "q:1"]);
    }

    #[tokio::test]
    async fn a_proxy_that_comes_gets_a_tunnel_and_one_that_goes_is_left() {
        let (mut first, root) = (TestProxy::start().await, tempfile::tempdir().unwrap());
        let mut second = TestProxy::with_agents_of(first.authority.clone(), None).await;
        let shared = Arc::new(Shared::for_tests(&first, root.path()));
        let all = Tunnels::new(Readiness::default().gate("tunnel"));
        let proxies = watch::Sender::new(vec![first.address.clone()]);
        let drain = Drain::default();
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let tunnelling = Tunnelling { shared, all: all.clone(), tunnels: 1, workers };
        let mut task = JoinSet::new();
        task.spawn(tunnelling.run(proxies.subscribe(), drain.clone()));
        let _former = timeout(Duration::from_secs(10), first.tunnel_rx.recv()).await.unwrap().unwrap();
        proxies.send_replace(vec![second.address.clone()]);
        let _latter = timeout(Duration::from_secs(10), second.tunnel_rx.recv()).await.unwrap().unwrap();
        let gone = async {
            while all.tunnels().len() != 1 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), gone).await.expect("the first proxy's slot is gone");
        drain.begin();
        timeout(Duration::from_secs(10), task.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    }
}
