//! Streams with bulk data move to tunnels of their own, and keep all their bytes.

use std::io::Read;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::wait::{self, PATIENCE};

use crate::connect;
use crate::proxies::{self, SECOND, peer_flags};
use crate::world::{self, ECHO, SOURCE, World};

/// Downloads of 1 GiB, more than the agent has tunnels for from the begin.
const DOWNLOADS: usize = 3;

#[test]
fn heavy_streams_get_tunnels_of_their_own_and_the_bytes_of_all_are_whole() {
    let options = Options {
        agent: ["--extra-tunnels", "8"].map(str::to_owned).into(),
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        let alone = world.download(&format!("edge-1:{SOURCE}"))?;
        let mut held = world.hold(format!("edge-1:{ECHO}"), 3)?;
        let before = world.numbers_of_all_tunnels()?;
        let download = Client::Download {
            target: format!("edge-1:{SOURCE}"),
        };
        let mut downloads = (0..DOWNLOADS)
            .map(|_| world.held_client(&download))
            .collect::<Result<Vec<_>>>()?;
        wait::until("all downloads have a tunnel each", PATIENCE, || {
            let places = tunnels_of(world, SOURCE)?;
            let mut distinct = places.clone();
            distinct.sort_unstable();
            distinct.dedup();
            ensure!(
                places.len() == DOWNLOADS && distinct.len() == DOWNLOADS,
                "{places:?}"
            );
            Ok(())
        })?;
        let now = world.tunnel_numbers()?;
        ensure!(now.len() > before.len(), "{now:?}, before {before:?}");
        let moved = world
            .lab
            .site(Host::Cloud)
            .metric(PROXY_ADMIN, "culvert_proxy_moved_streams_total")?;
        ensure!(moved >= 2.0, "{moved} have moved");
        held.check()?;
        let first = downloads.remove(0);
        drop(downloads);
        first.expect(&Report::Received(alone))
    });
}

#[test]
fn a_heavy_stream_by_way_of_another_proxy_moves_to_a_tunnel_that_ends_at_its_own() {
    let prepare = |lab: &culvert_lab::Lab| {
        let mut options = proxies::prepare_three(lab, &[Host::Edge1])?;
        let agent = ["--proxies", "1", "--extra-tunnels", "4"];
        options.agent.extend(agent.map(str::to_owned));
        Ok(options)
    };
    world::prepared(&[Host::Edge1], prepare, |world| {
        let mut further = peer_flags();
        further.extend(["--advertise".to_owned(), proxies::for_agents(SECOND)]);
        let _second = proxies::start(world, SECOND, &further)?;
        let socket = proxies::connect_socket(world, SECOND);
        let target = format!("edge-1:{SOURCE}");
        let mut download = None;
        wait::until("the second proxy reaches the node", PATIENCE, || {
            download = Some(Download::start(connect::stream(&socket, &target)?)?);
            Ok(())
        })?;
        let mut download = download.context("no download")?;
        let second = world.lab.site(Host::Cloud);
        let tunnels = second.json(proxies::admin(SECOND), "/debug/tunnels")?;
        ensure!(tunnels == serde_json::json!([]), "{tunnels}");
        let stream = |world: &World<'_>| {
            let site = world.lab.site(Host::Cloud);
            let listed = site.json(proxies::admin(SECOND), "/debug/streams")?;
            Ok::<_, anyhow::Error>(listed[0].clone())
        };
        ensure!(stream(world)?["peer"].is_string(), "{}", stream(world)?);
        // The agent may hear of the second proxy later than of what that asks for.
        while stream(world)?["tunnel"].is_null() {
            download.pieces(1)?;
        }
        let moved = stream(world)?;
        ensure!(moved["move_reason"] == "by_peer", "{moved}");
        ensure!(moved["peer"].is_null() && moved["moves"] == 1, "{moved}");
        let listed = proxies::control(world, SECOND, &["streams"])?;
        ensure!(listed.contains("moved from another proxy"), "{listed}");
        // It needs the other proxy until what that has forwarded is here.
        let forwarded = loop {
            let ended = world
                .culvert
                .proxy
                .logged("stream of another proxy ended", &[]);
            if let Some(ended) = ended.first() {
                break ended.field("bytes_to_client").parse::<u64>()?;
            }
            download.pieces(1)?;
        };
        while download.bytes() < forwarded {
            download.pieces(1)?;
        }
        world.culvert.proxy.kill()?;
        download.pieces(64)
    });
}

/// A download from a source, of which each piece is checked.
struct Download {
    socket: UnixStream,
    first: Vec<u8>,
    number: u64,
}

impl Download {
    const PIECE: usize = 64 << 10;

    fn start(mut socket: UnixStream) -> Result<Self> {
        let mut first = vec![0; Self::PIECE];
        socket.read_exact(&mut first)?;
        Ok(Self {
            socket,
            first,
            number: 0,
        })
    }

    fn bytes(&self) -> u64 {
        (self.number + 1) * Self::PIECE as u64
    }

    /// Reads so many more. Each begins with its number, and is like the first after it.
    fn pieces(&mut self, count: u64) -> Result<()> {
        let mut piece = vec![0; Self::PIECE];
        for _ in 0..count {
            self.socket.read_exact(&mut piece)?;
            self.number += 1;
            ensure!(
                piece[..8] == self.number.to_le_bytes() && piece[8..] == self.first[8..],
                "piece {} is another one",
                self.number
            );
        }
        Ok(())
    }
}

/// The tunnels of the streams to a port.
fn tunnels_of(world: &World<'_>, port: u16) -> Result<Vec<u64>> {
    let listed = world
        .lab
        .site(Host::Cloud)
        .json(PROXY_ADMIN, "/debug/streams")?;
    let mut tunnels = Vec::new();
    for stream in listed.as_array().context("no list")? {
        let destination = stream["original_dst"].as_str().unwrap_or_default();
        if destination.ends_with(&format!(":{port}")) {
            tunnels.push(stream["tunnel"].as_u64().context("no tunnel")?);
        }
    }
    Ok(tunnels)
}
