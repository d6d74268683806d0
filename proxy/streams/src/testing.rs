//! What tests need of this crate, those of the other crates of the proxy too: for these there is the
//! feature `testing`, for the helpers make what only a running proxy makes.

use culvert_proxy_core::metrics::Metrics;
use culvert_tunnel::proto::tunnel::DescribeResponse;
use culvert_tunnel::{Budget, FarEnd, ProxyTunnel, ReadAhead, Tunnel};
use tokio::io::DuplexStream;
use tokio_util::task::TaskTracker;

use crate::live::Streams;
use crate::registry::{Registration, Registry};

impl Streams {
    /// Streams whose ends go nowhere.
    #[must_use]
    pub fn for_tests(metrics: Metrics) -> Self {
        Self::new(metrics, None)
    }
}

impl Registry {
    /// A tunnel of `node` to an agent that sends nothing.
    ///
    /// # Panics
    ///
    /// `node` is not a name.
    pub async fn register_for_tests(&self, node: &str) -> Registration {
        let node = node.parse().expect("the name of a node");
        let agent = ([10, 0, 3, 7], 40_000).into();
        self.register(node, tunnel().await, DescribeResponse::default(), agent)
    }
}

/// A tunnel to an agent that sends nothing.
pub(crate) async fn tunnel() -> Tunnel {
    tunnel_for(1 << 29).await
}

/// The same, over which so many streams may be opened in all.
pub(crate) async fn tunnel_for(streams_in_life: u32) -> Tunnel {
    let (near, far) = tokio::io::duplex(1 << 10);
    tunnel_over(ReadAhead::new(near), far, streams_in_life).await
}

/// A tunnel to `far`, which stays open.
pub(crate) async fn tunnel_over(
    io: ReadAhead<DuplexStream>,
    far: DuplexStream,
    streams_in_life: u32,
) -> Tunnel {
    let socket_state = io.socket_state();
    let (tunnel, driver) = ProxyTunnel {
        far_end: FarEnd::Agent,
        stream_window: 1 << 20,
        max_streams: 8,
        streams_in_life,
        budget: Budget::new(1 << 20),
    }
    .establish(io, socket_state)
    .await
    .expect("nothing is refused");
    TaskTracker::new().spawn(async move {
        let _far = far;
        driver.run().await
    });
    tunnel
}
