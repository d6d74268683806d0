//! Bulk data keeps all tunnels of an agent busy: connections that come later do not share one with
//! it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::culvert::{Options, PROXY_ADMIN};
use culvert_lab::host::Host;
use culvert_lab::probe::Client;
use culvert_lab::wait::{self, PATIENCE};

use crate::world::{self, ECHO, SOURCE, World};

/// Downloads of 1 GiB: more than the tunnels carry while the agent makes up its mind.
const DOWNLOADS: usize = 8;
/// A minute without need for it, and 20 s in which the proxy sees that it ends.
const GOES: Duration = Duration::from_secs(120);

#[test]
#[ignore = "two minutes: `cargo xtask test --long`"]
fn a_connection_beside_bulk_has_a_further_tunnel_which_ends_after_it() {
    let options = Options {
        agent: ["--extra-tunnels", "1"].map(str::to_owned).into(),
        ..Options::default()
    };
    world::with(&[Host::Edge1], options, |world| {
        let before = world.numbers_of_all_tunnels()?;
        let download = Client::Download {
            target: format!("edge-1:{SOURCE}"),
        };
        let downloads = (0..DOWNLOADS)
            .map(|_| world.held_client(&download))
            .collect::<Result<Vec<_>>>()?;
        wait::until("a further tunnel is there", PATIENCE, || {
            let now = world.tunnel_numbers()?;
            ensure!(now.len() == before.len() + 1, "{now:?}, before {before:?}");
            Ok(())
        })?;
        let mut held = world.hold(format!("edge-1:{ECHO}"), 3)?;
        ensure!(
            streams_of_newest(world)? == 3,
            "they share a tunnel with bulk"
        );
        drop(downloads);
        wait::until("one tunnel takes no new streams", GOES, || {
            let log = world.culvert.agent(0).logged(SURPLUS, &[]);
            ensure!(!log.is_empty(), "not yet");
            Ok(())
        })?;
        held.check()?;
        drop(held);
        // Any of them: they are all alike.
        wait::until("one tunnel has ended", GOES, || {
            let now = world.tunnel_numbers()?;
            ensure!(now.len() == before.len(), "{now:?}, before {before:?}");
            Ok(())
        })
    });
}

const SURPLUS: &str = "bulk data needs this tunnel no longer; it ends with its streams";

/// Streams of the tunnel that came last.
fn streams_of_newest(world: &World<'_>) -> Result<u64> {
    let site = world.lab.site(Host::Cloud);
    let listed = site.json(PROXY_ADMIN, "/debug/tunnels")?;
    let tunnels = listed.as_array().context("no list")?;
    let newest = tunnels
        .iter()
        .max_by_key(|tunnel| tunnel["tunnel"].as_u64());
    newest
        .and_then(|tunnel| tunnel["streams"].as_u64())
        .with_context(|| format!("no streams: {listed}"))
}
