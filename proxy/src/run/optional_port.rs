//! Ports that only some clients use. One that another program has for now is named in `/readyz` and
//! tried again: it does not keep the proxy, and all other clients, from edge nodes.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use culvert_daemon::{Drain, Gate, Listeners, Readiness, SocketUse};
use culvert_proxy_streams::sockets::listen;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// The pause before a port that is taken is tried again.
const BIND_AGAIN: Duration = Duration::from_secs(2);
/// For the operator.
const FIX: &str = "find its user with `ss -tanp`; net.ipv4.ip_local_reserved_ports keeps it from \
                   connections of other programs";

/// The ports that other programs have, as `/readyz` names them. Clones share them.
#[derive(Clone)]
pub(super) struct TakenPorts {
    gate: Gate,
    taken: Arc<Mutex<BTreeMap<SocketAddr, &'static str>>>,
}

impl TakenPorts {
    pub(super) fn new(readiness: &Readiness) -> Self {
        let gate = readiness.gate("ports");
        gate.open();
        let taken = Arc::default();
        Self { gate, taken }
    }

    /// Another program has the port of this flag.
    pub(super) fn insert(&self, address: SocketAddr, flag: &'static str) {
        let mut taken = self.lock();
        taken.insert(address, flag);
        self.publish(&taken);
    }

    /// The port is bound, or not wanted any more.
    pub(super) fn remove(&self, address: SocketAddr) {
        let mut taken = self.lock();
        taken.remove(&address);
        self.publish(&taken);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, &'static str>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, taken: &BTreeMap<SocketAddr, &'static str>) {
        let mut ports = Vec::new();
        for (address, flag) in taken {
            ports.push(format!("{address} ({flag})"));
        }
        let remark = format!("taken, trying again: {}: {FIX}", ports.join(", "));
        self.gate.remark((!ports.is_empty()).then_some(remark));
    }
}

/// Whether another program has the port that could not be bound.
pub(super) fn is_taken(error: &anyhow::Error) -> bool {
    let source = error.root_cause().downcast_ref::<io::Error>();
    source.is_some_and(|source| source.kind() == ErrorKind::AddrInUse)
}

/// A port, bound or wanted, and not yet served.
pub(super) struct OptionalPort {
    address: SocketAddr,
    /// For messages.
    flag: &'static str,
    used_by: SocketUse,
    segment_limit: Option<u16>,
    listener: Option<TcpListener>,
    listeners: Listeners,
    taken: TakenPorts,
}

impl OptionalPort {
    /// Binds the port, or remembers that another program has it.
    ///
    /// # Errors
    /// It cannot be bound for another reason.
    pub(super) fn bind(
        address: SocketAddr,
        flag: &'static str,
        used_by: SocketUse,
        (listeners, taken): (&Listeners, &TakenPorts),
    ) -> Result<Self> {
        let mut port = Self {
            address,
            flag,
            used_by,
            segment_limit: None,
            listener: None,
            listeners: listeners.clone(),
            taken: taken.clone(),
        };
        match port.try_bind() {
            Ok(listener) => port.listener = Some(listener),
            Err(error) if is_taken(&error) => {
                tracing::warn!(%address, flag, fix = FIX, "the port is taken; trying again");
                taken.insert(address, flag);
            }
            Err(error) => return Err(error.context(flag)),
        }
        Ok(port)
    }

    /// Limits segments of its connections to so many bytes (`--tunnel-mss`).
    pub(super) fn limit_segments(mut self, bytes: Option<u16>) -> Self {
        self.segment_limit = bytes;
        self
    }

    fn try_bind(&self) -> Result<TcpListener> {
        listen::bind(&self.listeners, self.address, self.used_by)
    }

    /// Serves its connections, once it is free, until the drain begins and they have ended.
    pub(super) async fn serve(
        mut self,
        name: &'static str,
        drain: Drain,
        serve_one: impl Fn((TcpStream, SocketAddr), &TaskTracker) + Send,
    ) -> Result<()> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => tokio::select! {
                () = drain.begun() => return Ok(()),
                listener = self.bind_when_free() => listener,
            },
        };
        if let Some(bytes) = self.segment_limit {
            culvert_tunnel::limit_segments(&listener, bytes);
        }
        listen::serve(listener, name, drain, serve_one).await
    }

    async fn bind_when_free(&self) -> TcpListener {
        loop {
            sleep(BIND_AGAIN).await;
            if let Ok(listener) = self.try_bind() {
                let Self { address, flag, .. } = self;
                tracing::info!(%address, flag, "the port is free again");
                self.taken.remove(*address);
                return listener;
            }
        }
    }
}
