//! Connections to destinations for clients that the proxy talks with.

use bytes::Bytes;
use culvert_daemon::Worker;
use culvert_proxy_core::directory::Destination;
use culvert_proxy_streams::live::Frontend;
use culvert_tunnel::Socket;

use super::{Connect, DirectRequest, Plan};
use crate::http::opened::{Opened, Pair, Relaying, Unopened};

impl Connect {
    /// Opens a connection to `destination`. Dropping the future cancels the dial.
    pub(super) async fn open(
        &self,
        destination: Destination,
        client: String,
    ) -> Result<Opened, Unopened> {
        let frontend = Frontend::ConnectTls;
        let record = self.router.start_record(frontend, client, &destination);
        let plan = self.decide(destination, record)?;
        self.open_plan(plan).await
    }

    /// Opens a connection by a way that is decided. Dropping the future cancels the dial.
    pub(super) async fn open_plan(&self, plan: Plan) -> Result<Opened, Unopened> {
        match plan {
            Plan::Node(routed) => Opened::stream(routed).await,
            Plan::Direct(request) => {
                let (pair, other) = Pair::new()?;
                let task = Box::pin(self.dial(request, other)).await?;
                Ok(pair.relayed(task))
            }
        }
    }

    async fn dial(&self, mut request: DirectRequest, client: Socket) -> Result<Relaying, Unopened> {
        let backend = request.dial(&self.direct).await?;
        let task = async move { request.relay(client, backend, Bytes::new()).await };
        Ok(Worker::current().run(task))
    }
}
