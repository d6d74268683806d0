//! Streams with bulk data move to tunnels of their own, and keep all their bytes.

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::{Client, Report};
use culvert_lab::wait::{self, PATIENCE};

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
