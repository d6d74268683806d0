//! Ports that only some clients use. One that another program has for now is named in `/readyz` and
//! tried again: it does not keep the program from its other work.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::{Gate, Readiness};

/// The pause before a port that is taken is tried again.
pub const BIND_RETRY: Duration = Duration::from_secs(2);
/// For the operator.
const FIX: &str = "find its user with `ss -tanp`; net.ipv4.ip_local_reserved_ports keeps it from \
                   connections of other programs";

/// The ports that other programs have, as `/readyz` names them. Clones share them.
#[derive(Clone)]
pub struct TakenPorts {
    gate: Gate,
    taken: Arc<Mutex<BTreeMap<SocketAddr, &'static str>>>,
}

impl TakenPorts {
    /// `name` is that of the line in `/readyz`.
    #[must_use]
    pub fn new(readiness: &Readiness, name: &'static str) -> Self {
        let gate = readiness.gate(name);
        gate.open();
        Self {
            gate,
            taken: Arc::default(),
        }
    }

    /// Another program has the port of this flag.
    pub fn insert(&self, address: SocketAddr, flag: &'static str) {
        let mut taken = self.taken.lock();
        taken.insert(address, flag);
        self.publish(&taken);
    }

    /// The port is bound, or not wanted any more.
    pub fn remove(&self, address: SocketAddr) {
        let mut taken = self.taken.lock();
        taken.remove(&address);
        self.publish(&taken);
    }

    fn publish(&self, taken: &BTreeMap<SocketAddr, &'static str>) {
        if taken.is_empty() {
            self.gate.remark(None);
            return;
        }
        let mut ports = Vec::new();
        for (address, flag) in taken {
            ports.push(format!("{address} ({flag})"));
        }
        let ports = ports.join(", ");
        self.gate
            .remark(Some(format!("taken, trying again: {ports}: {FIX}")));
    }
}

/// Whether another program has the port that could not be bound.
#[must_use]
pub fn is_taken(error: &anyhow::Error) -> bool {
    match error.root_cause().downcast_ref::<io::Error>() {
        Some(source) => source.kind() == ErrorKind::AddrInUse,
        None => false,
    }
}

/// A port that is bound, or will be when it is free.
pub struct OptionalPort {
    address: SocketAddr,
    /// For messages.
    flag: &'static str,
    listener: Option<TcpListener>,
    bind: Box<dyn Fn() -> Result<TcpListener> + Send + Sync>,
    taken: TakenPorts,
}

impl OptionalPort {
    /// Binds the port with `bind`, unless another program has it.
    ///
    /// # Errors
    /// It cannot be bound for another reason.
    pub fn bind(
        address: SocketAddr,
        flag: &'static str,
        taken: &TakenPorts,
        bind: impl Fn() -> Result<TcpListener> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = match bind() {
            Ok(listener) => Some(listener),
            Err(error) if is_taken(&error) => {
                tracing::warn!(%address, flag, fix = FIX, "the port is taken; trying again");
                taken.insert(address, flag);
                None
            }
            Err(error) => return Err(error.context(flag)),
        };
        Ok(Self {
            address,
            flag,
            listener,
            bind: Box::new(bind),
            taken: taken.clone(),
        })
    }

    /// The bound address. The one to bind, while the port is taken.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        if let Some(listener) = &self.listener
            && let Ok(address) = listener.local_addr()
        {
            return address;
        }
        self.address
    }

    /// The listener, once the port is free.
    pub async fn listener(mut self) -> TcpListener {
        if let Some(listener) = self.listener.take() {
            return listener;
        }
        loop {
            sleep(BIND_RETRY).await;
            if let Ok(listener) = (self.bind)() {
                let Self { address, flag, .. } = &self;
                tracing::info!(%address, flag, "the port is free again");
                self.taken.remove(*address);
                return listener;
            }
        }
    }
}
