//! The listeners of forwarded ports: those of `--forward`, and in a cluster those of ConfigMap
//! `culvert-forwards`, which come and go while the proxy runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use culvert_daemon::{
    BIND_RETRY, Drain, Listeners, Problem, SocketUse, Supervisor, TakenPorts, chain, is_taken,
};
use culvert_proxy_clients::admitted::Admitted;
use culvert_proxy_clients::forward::{ForwardedPort, Forwarder};
use culvert_proxy_clients::raw::RawClients;
use culvert_proxy_clients::refusals::Refusals;
use culvert_proxy_cluster::Cluster;
use culvert_proxy_core::forward::{Forward, ForwardTo};
use culvert_proxy_core::metrics::OpenPort;
use culvert_proxy_streams::sockets::listen;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Proxy;

/// The listeners of forwarded ports.
pub(super) struct ForwardListeners {
    listeners: Listeners,
    /// The forwards of `--forward`.
    given: Vec<Forward>,
    open: BTreeMap<SocketAddr, Open>,
    /// Ports that cannot be had, each with its problem, so that it is logged once.
    problems: BTreeMap<SocketAddr, Problem>,
    /// For `/readyz`.
    taken: TakenPorts,
}

struct Open {
    forward: Forward,
    state: State,
}

enum State {
    Bound(TcpListener),
    Served {
        port_tx: watch::Sender<ForwardedPort>,
        /// Accepts until it is dropped.
        accepting: AbortOnDropHandle<()>,
    },
}

/// What serves the connections of all listeners.
struct Serving {
    forwarder: Forwarder,
    cluster: Option<Cluster>,
    /// The listeners' tasks, their connections, and what follows selected nodes.
    tasks: TaskTracker,
    drain: Drain,
}

impl Proxy {
    /// Binds the ports of `--forward`, and those that the ConfigMap named last.
    pub(super) fn bind_forwards(&self, taken: &TakenPorts) -> Result<ForwardListeners> {
        let mut bound = ForwardListeners {
            listeners: self.listeners.clone(),
            given: self.config.forwards.forward.clone(),
            open: BTreeMap::new(),
            problems: BTreeMap::new(),
            taken: taken.clone(),
        };
        for forward in bound.given.clone() {
            let flag = format!("--forward {forward}");
            match bound.bind(forward) {
                // It is logged and tried again, as those of the ConfigMap are.
                Err(error) if is_taken(&error) => {}
                done => done.context(flag)?,
            }
        }
        let needed = bound.needed(&self.forwards_tx.borrow());
        bound.open(needed);
        Ok(bound)
    }

    pub(super) fn spawn_forwards(&self, supervisor: &mut Supervisor, bound: ForwardListeners) {
        let config = &self.config;
        let forwarder = Forwarder {
            raw: self.raw_clients(),
            admitted: Admitted::new(
                &config.forwards.forward_client,
                &config.kubernetes.pod_range,
                self.directory.clone(),
            ),
            refusals: Refusals::new(self.metrics.refused_clients(OpenPort::Forward)),
        };
        let serving = Serving {
            forwarder,
            cluster: self.cluster.as_ref().map(|joined| joined.cluster.clone()),
            tasks: TaskTracker::new(),
            drain: supervisor.drain(),
        };
        let served = bound.follow(self.forwards_tx.subscribe(), serving);
        supervisor.spawn("forwarded ports", self.clients.track_future(served));
    }

    pub(super) fn raw_clients(&self) -> RawClients {
        RawClients {
            router: self.router.clone(),
            workers: self.workers.clone(),
        }
    }
}

impl ForwardListeners {
    /// Serves the ports of `--forward` and of `named` until the drain begins and all connections
    /// have ended.
    async fn follow(
        mut self,
        mut named: watch::Receiver<Vec<Forward>>,
        serving: Serving,
    ) -> Result<()> {
        loop {
            let needed = self.needed(&named.borrow_and_update());
            self.close_others(&needed).await;
            self.open(needed);
            self.serve(&serving);
            tokio::select! {
                biased;
                () = serving.drain.begun() => break,
                changed = named.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(BIND_RETRY), if !self.problems.is_empty() => {}
            }
        }
        serving.drain.begun().await;
        drop(self.open);
        serving.tasks.close();
        serving.tasks.wait().await;
        Ok(())
    }

    /// The entries of `--forward`, and of `named` those that do not conflict with them.
    fn needed(&self, named: &[Forward]) -> BTreeMap<SocketAddr, Forward> {
        let mut needed = BTreeMap::new();
        for forward in &self.given {
            needed.insert(forward.listen, forward.clone());
        }
        for forward in named {
            let is_free = !self.given.iter().any(|given| given.conflicts_with(forward));
            if is_free {
                needed.insert(forward.listen, forward.clone());
            }
        }
        needed
    }

    /// Closes what is not needed any more. Their ports are free afterwards.
    async fn close_others(&mut self, needed: &BTreeMap<SocketAddr, Forward>) {
        let closed: Vec<_> = self
            .open
            .extract_if(.., |address, _| !needed.contains_key(address))
            .collect();
        for (address, Open { state, .. }) in closed {
            self.listeners.close(address);
            if let State::Served { accepting, .. } = state {
                accepting.abort();
                // Its end was requested.
                drop(accepting.await);
            }
        }
        for address in self.problems.keys() {
            if !needed.contains_key(address) {
                self.taken.remove(*address);
            }
        }
        self.problems
            .retain(|address, _| needed.contains_key(address));
    }

    /// Binds what is missing.
    fn open(&mut self, needed: BTreeMap<SocketAddr, Forward>) {
        for (address, forward) in needed {
            if let Some(open) = self.open.get_mut(&address) {
                open.forward = forward;
                continue;
            }
            let shown = forward.to_string();
            match self.bind(forward) {
                Ok(()) => {
                    self.problems.remove(&address);
                    self.taken.remove(address);
                }
                Err(error) => {
                    if is_taken(&error) {
                        self.taken.insert(address, "forwarded");
                    }
                    let problem = self.problems.entry(address).or_default();
                    if let Some(reason) = problem.record(Some(chain(&*error))) {
                        tracing::error!(
                            forward = shown,
                            reason,
                            "forwarded port not open: free the port, or choose another one for \
                             --forward or in ConfigMap culvert-forwards"
                        );
                    }
                }
            }
        }
    }

    fn bind(&mut self, forward: Forward) -> Result<()> {
        let listener = listen::bind(&self.listeners, forward.listen, SocketUse::Clients)?;
        let state = State::Bound(listener);
        self.open.insert(forward.listen, Open { forward, state });
        Ok(())
    }

    /// Serves what is bound, each as it leads now.
    fn serve(&mut self, serving: &Serving) {
        let open = std::mem::take(&mut self.open);
        let served = open.into_iter().map(|(address, Open { forward, state })| {
            let state = match state {
                State::Bound(listener) => serving.serve(listener, &forward),
                State::Served { port_tx, accepting } => {
                    let before = port_tx.borrow().clone();
                    if before.forward != forward {
                        port_tx.send_replace(serving.port(&forward, Some(before)));
                    }
                    State::Served { port_tx, accepting }
                }
            };
            (address, Open { forward, state })
        });
        self.open = served.collect();
    }
}

impl Serving {
    /// `before` is the port's former state: the same selector keeps its nodes.
    fn port(&self, forward: &Forward, before: Option<ForwardedPort>) -> ForwardedPort {
        let before = before.filter(|before| before.forward.to == forward.to);
        let known = before.and_then(|before| before.selected);
        let selected = match (&forward.to, &self.cluster) {
            _ if known.is_some() => known,
            (ForwardTo::Selected(selector), Some(cluster)) => {
                let (selected, following) = cluster.selected(selector);
                drop(self.tasks.spawn(following));
                Some(selected)
            }
            (ForwardTo::Node(_) | ForwardTo::Selected(_), _) => None,
        };
        ForwardedPort {
            forward: forward.clone(),
            selected,
        }
    }

    /// Accepts until the result is dropped. Connections go on then.
    fn serve(&self, listener: TcpListener, forward: &Forward) -> State {
        let (port_tx, port_rx) = watch::channel(self.port(forward, None));
        let forwarder = self.forwarder.clone();
        let tasks = self.tasks.clone();
        let served = listen::serve(
            listener,
            "forward",
            self.drain.clone(),
            move |client, _: &TaskTracker| {
                forwarder.serve(&port_rx.borrow(), client, &tasks);
            },
        );
        let accepting = self.tasks.spawn(async move {
            // It cannot fail.
            drop(served.await);
        });
        State::Served {
            port_tx,
            accepting: AbortOnDropHandle::new(accepting),
        }
    }
}
