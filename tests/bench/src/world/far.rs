//! An edge over a long link. A relay delays the hop between the two halves of each relay, the hop
//! between agent and proxy, and direct TCP between client and backend.

use anyhow::Result;
use culvert_lab::process::Process;

use super::culvert::{Culvert, PROXY};
use super::relays::{self, Relays};
use super::{BACKENDS, Route, local, tcp};
use crate::plan::{Distance, Path};

/// Bytes in flight in a connection of direct TCP or of the relays. It equals Culvert's default
/// stream window, so that one stream has the same limit on every path.
const WINDOW: usize = 4 << 20;
/// Bytes in flight in a tunnel, which carries many streams: as many as Linux gives a busy
/// connection when asked to.
const TUNNEL_WINDOW: usize = 16 << 20;

/// One link, with all delay relays on it.
pub(super) struct Link {
    node: String,
    base: u16,
    /// The relays for direct TCP, the plain relay, the TLS relay and the tunnels.
    delays: Vec<Process>,
    plain: Process,
    tls: Process,
}

/// Starts the relays that delay direct TCP, the plain relay, the TLS relay and the tunnels.
fn start_delays(culvert: &Culvert<'_>, distance: Distance, base: u16) -> Result<Vec<Process>> {
    let hops = [
        (base, BACKENDS[0], WINDOW),
        (base + 1, Relays::PLAIN_FAR, WINDOW),
        (base + 2, Relays::TLS_FAR, WINDOW),
        (base + 3, PROXY, TUNNEL_WINDOW),
    ];
    let mut delays = Vec::new();
    for (port, to, window) in hops {
        let args = [
            "delay".to_owned(),
            format!("--listen={}", local(port)),
            format!("--to={}", local(to)),
            format!("--round-trip={}", distance.round_trip()),
            format!("--window={window}"),
        ];
        delays.push(
            culvert
                .starter()
                .worker(&format!("delay-{port}"), port, &args)?,
        );
    }
    Ok(delays)
}

impl Link {
    pub(super) fn start(culvert: &mut Culvert<'_>, distance: Distance) -> Result<Self> {
        let base = 8200
            + 100
                * Distance::LINKS
                    .iter()
                    .position(|link| *link == distance)
                    .map_or(0, |n| n as u16);
        let node = format!("far-{}", distance.round_trip());
        let delays = start_delays(culvert, distance, base)?;
        let certificate = Relays::certificate(culvert.starter());
        let plain = relays::near(
            culvert.starter(),
            &format!("plain-near-{node}"),
            base + 11,
            &local(base + 1),
            None,
        )?;
        let tls = relays::near(
            culvert.starter(),
            &format!("tls-near-{node}"),
            base + 12,
            &local(base + 2),
            Some(&certificate),
        )?;
        culvert.add_agent(&node, base + 3, 2)?;
        Ok(Self {
            node,
            base,
            delays,
            plain,
            tls,
        })
    }

    pub(super) fn check(&mut self) -> Result<()> {
        self.delays
            .iter_mut()
            .chain([&mut self.plain, &mut self.tls])
            .try_for_each(Process::check)
    }

    pub(super) fn route(
        &self,
        path: Path,
        relays: &Relays,
        culvert: &Culvert<'_>,
    ) -> Result<Route> {
        let [plain_far, tls_far] = relays.far_pids();
        Ok(match path {
            Path::PlainRelay => Route {
                endpoint: tcp(self.base + 11),
                pids: vec![self.plain.pid(), plain_far],
            },
            Path::TlsRelay => Route {
                endpoint: tcp(self.base + 12),
                pids: vec![self.tls.pid(), tls_far],
            },
            Path::Connect => culvert.by_connect(&self.node),
            Path::InterceptEbpf => culvert.by_address(&self.node, BACKENDS[0])?,
            Path::InterceptNft => culvert.by_address(&self.node, BACKENDS[1])?,
            Path::Direct
            | Path::DirectNew
            | Path::SimpleTlsRelay
            | Path::Konnectivity
            | Path::Frp
            | Path::FrpNoMux
            | Path::Rathole
            | Path::ConnectTls
            | Path::ConnectDirect
            | Path::ConnectAgainst
            | Path::ConnectByPeer
            | Path::Redirector => Route {
                endpoint: tcp(self.base),
                pids: Vec::new(),
            },
        })
    }
}
