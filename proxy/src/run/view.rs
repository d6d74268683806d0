//! The port of the view for users of a cluster.

use std::path::PathBuf;

use anyhow::Result;
use culvert_daemon::{OptionalPort, SocketUse, Supervisor, TakenPorts};
use culvert_proxy_cluster::Viewers;
use culvert_proxy_operators::control::Control;
use culvert_proxy_operators::view::{View, ViewParts};
use culvert_proxy_streams::sockets::strangers::Strangers;
use tokio_util::task::TaskTracker;

use super::Proxy;
use super::optional_port::serve_optional;

/// The port, if there is one, and the socket with the proxy's pages.
pub(super) struct ViewSockets {
    pub(super) view: Option<OptionalPort>,
    pub(super) admin: PathBuf,
}

impl Proxy {
    pub(super) fn bind_view(&self, taken: &TakenPorts) -> Result<Option<OptionalPort>> {
        let Some(address) = self.config.listen.view_listen else {
            return Ok(None);
        };
        let port = self.bind_optional(address, "--view-listen", SocketUse::Admin, taken)?;
        Ok(Some(port))
    }

    pub(super) fn spawn_view(
        &self,
        supervisor: &mut Supervisor,
        sockets: ViewSockets,
        control: Control,
    ) {
        // The rules of flags allow the port in a cluster only.
        let Some(port) = sockets.view else {
            return;
        };
        let Some(joined) = &self.cluster else {
            return;
        };
        let view = View::new(ViewParts {
            viewers: Viewers::new(joined.cluster.clone()),
            trust: self.trust.clone(),
            strangers: Strangers::new(self.config.listen.max_handshakes),
            control,
            connect: self.connect(supervisor.drain()),
            admin_socket: sockets.admin,
            redirector_admin_socket: self.config.listen.redirector_admin_socket.clone(),
            drain: supervisor.drain(),
        });
        let served = serve_optional(
            port,
            "view",
            supervisor.drain(),
            move |client, connections: &TaskTracker| view.serve(client, connections),
        );
        // It has clients of nodes, which need tunnels.
        supervisor.spawn("view port", self.clients.track_future(served));
    }
}
