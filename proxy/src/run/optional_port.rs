//! The proxy's ports that only some clients use.

use std::net::SocketAddr;

use anyhow::Result;
use culvert_daemon::{Drain, OptionalPort, SocketUse, TakenPorts};
use culvert_proxy_streams::sockets::listen;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::Proxy;

impl Proxy {
    /// Binds the port of `flag`, or remembers that another program has it.
    pub(super) fn bind_optional(
        &self,
        address: SocketAddr,
        flag: &'static str,
        used_by: SocketUse,
        taken: &TakenPorts,
    ) -> Result<OptionalPort> {
        let listeners = self.listeners.clone();
        OptionalPort::bind(address, flag, taken, move || {
            listen::bind(&listeners, address, used_by)
        })
    }
}

/// Serves the connections of a port, once it is free, until the drain begins and they have ended.
pub(super) async fn serve_optional(
    port: OptionalPort,
    name: &'static str,
    drain: Drain,
    serve_one: impl Fn((TcpStream, SocketAddr), &TaskTracker) + Send,
) -> Result<()> {
    let listener = tokio::select! {
        () = drain.begun() => return Ok(()),
        listener = port.listener() => listener,
    };
    listen::serve(listener, name, drain, serve_one).await
}
