//! The listeners of forwarded ports: those of `--forward`, and in a cluster those of ConfigMap
//! `culvert-forwards`, which come and go while the proxy runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use culvert_daemon::{Drain, Listeners, Problem, SocketUse, Supervisor, chain};
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
use crate::args::RunArgs;

/// The time after which a port that is in use is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The listeners of forwarded ports.
pub(super) struct ForwardListeners {
    listeners: Listeners,
    /// Those of `--forward`.
    given: Vec<Forward>,
    open: BTreeMap<SocketAddr, Open>,
    /// Ports that cannot be had, each with its problem, so that it is logged once.
    problems: BTreeMap<SocketAddr, Problem>,
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

/// Refuses flags that contradict each other.
pub(super) fn check(args: &RunArgs) -> Result<()> {
    let own = own_ports(args);
    let given = &args.forwards.forward;
    for (before, forward) in given.iter().enumerate() {
        ensure!(
            !own.contains(&forward.listen.port()),
            "--forward {forward}: the proxy uses this port of the host itself: choose another one"
        );
        let other = given[..before]
            .iter()
            .find(|other| other.conflicts_with(forward));
        if let Some(other) = other {
            bail!(
                "--forward {forward}: --forward {other} has the same port of this host: choose \
                 another one"
            );
        }
        ensure!(
            args.kubernetes.is_in_cluster() || matches!(forward.to, ForwardTo::Node(_)),
            "--forward {forward}: nodes have labels only in a cluster: name a node"
        );
    }
    Ok(())
}

/// The ports on which the proxy listens by other flags.
pub(super) fn own_ports(args: &RunArgs) -> BTreeSet<u16> {
    let listen = &args.listen;
    let single = [
        Some(listen.agent_listen),
        Some(args.peers.peer_listen),
        Some(listen.admin_listen),
        listen.metrics_listen,
        listen.connect_listen,
    ];
    let named = args.names.name_listen.iter().map(|given| given.address);
    let addresses = single.into_iter().flatten();
    let addresses = addresses.chain(listen.intercept_listen.iter().copied());
    let mut ports: BTreeSet<u16> = addresses
        .chain(named)
        .map(|address| address.port())
        .collect();
    if args.kubernetes.name_service.is_some() {
        ports.extend(args.kubernetes.name_ports.all());
    }
    ports
}

impl Proxy {
    /// Binds the ports of `--forward`, and those that the ConfigMap named last.
    pub(super) fn bind_forwards(&self) -> Result<ForwardListeners> {
        let mut bound = ForwardListeners {
            listeners: self.listeners.clone(),
            given: self.args.forwards.forward.clone(),
            open: BTreeMap::new(),
            problems: BTreeMap::new(),
        };
        for forward in bound.given.clone() {
            let flag = format!("--forward {forward}");
            bound.bind(forward).context(flag)?;
        }
        let wanted = bound.wanted(&self.forwards_tx.borrow());
        bound.open(wanted);
        Ok(bound)
    }

    pub(super) fn spawn_forwards(&self, supervisor: &mut Supervisor, bound: ForwardListeners) {
        let args = &self.args;
        let forwarder = Forwarder {
            raw: self.raw_clients(),
            admitted: Admitted::new(
                &args.forwards.forward_client,
                &args.kubernetes.pod_range,
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
            let wanted = self.wanted(&named.borrow_and_update());
            self.close_others(&wanted).await;
            self.open(wanted);
            self.serve(&serving);
            tokio::select! {
                biased;
                () = serving.drain.begun() => break,
                changed = named.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(RETRY), if !self.problems.is_empty() => {}
            }
        }
        serving.drain.begun().await;
        drop(self.open);
        serving.tasks.close();
        serving.tasks.wait().await;
        Ok(())
    }

    /// The entries of `--forward`, and of `named` those that do not conflict with them.
    fn wanted(&self, named: &[Forward]) -> BTreeMap<SocketAddr, Forward> {
        let is_free = |forward: &&Forward| {
            let mut given = self.given.iter();
            given.all(|given| !given.conflicts_with(forward))
        };
        let all = self.given.iter().chain(named.iter().filter(is_free));
        all.map(|forward| (forward.listen, forward.clone()))
            .collect()
    }

    /// Closes what is not wanted any more. Their ports are free afterwards.
    async fn close_others(&mut self, wanted: &BTreeMap<SocketAddr, Forward>) {
        let unwanted = |address: &SocketAddr, _: &mut Open| !wanted.contains_key(address);
        let closed: Vec<_> = self.open.extract_if(.., unwanted).collect();
        for (address, Open { state, .. }) in closed {
            self.listeners.close(address);
            if let State::Served { accepting, .. } = state {
                accepting.abort();
                // It was told to end.
                drop(accepting.await);
            }
        }
        self.problems
            .retain(|address, _| wanted.contains_key(address));
    }

    /// Binds what is missing.
    fn open(&mut self, wanted: BTreeMap<SocketAddr, Forward>) {
        for (address, forward) in wanted {
            if let Some(open) = self.open.get_mut(&address) {
                open.forward = forward;
                continue;
            }
            let shown = forward.to_string();
            match self.bind(forward) {
                Ok(()) => drop(self.problems.remove(&address)),
                Err(error) => {
                    let problem = self.problems.entry(address).or_default();
                    if let Some(reason) = problem.news(Some(chain(&*error))) {
                        tracing::error!(
                            forward = shown,
                            reason,
                            "forwarded port not open: free the port, or choose another one in \
                             ConfigMap culvert-forwards"
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
    /// `before` is what the port was before: the same selector goes on selecting the same nodes.
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
        let serve_one = move |client, _: &TaskTracker| {
            forwarder.serve(&port_rx.borrow(), client, &tasks);
        };
        let served = listen::serve(listener, "forward", self.drain.clone(), serve_one);
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
