//! More bytes for clients that take nothing than the proxy may keep in memory.

use std::time::Duration;

use anyhow::ensure;
use xtask::lab::culvert::PROXY_ADMIN;
use xtask::lab::place::Place;
use xtask::{progress, wait};

use crate::world::{self, ECHO, GIB, SOURCE};

const STALLED: usize = 40;
const BUDGET: u64 = 16 << 20;
/// What memory costs beyond the bytes in it, and what the proxy reads ahead.
const BESIDE: u64 = 48 << 20;

#[test]
fn over_the_budget_stalled_clients_are_reset_longest_first_and_memory_stays_bounded() {
    let options = world::proxy_options(["--buffer-budget", "16MiB"]);
    world::with(&[Place::Edge1], options, |world| {
        let mut held = world.held_client(&["hold", &format!("edge-1:{ECHO}"), "10"])?;
        held.expect("held")?;
        let before = world.culvert.proxy.resident()?;
        let stalled = world.held_client(&["stall", &format!("edge-1:{SOURCE}"), &STALLED.to_string()])?;
        stalled.expect("stalled")?;
        // Each would keep a whole window of 5 MiB there; three of them are within the budget.
        let line = ["stream ended", "outcome=\"buffer_budget\"", "--buffer-budget"];
        wait::until("all but the last few are reset", Duration::from_secs(30), || {
            let log = world.culvert.proxy.log();
            let reset = log.lines().filter(|text| line.iter().all(|word| text.contains(word))).count();
            ensure!(reset >= STALLED - 8, "{reset} are");
            Ok(())
        })?;
        let waiting = world.lab.site(Place::Cloud).metric(PROXY_ADMIN, "culvert_proxy_waiting_bytes")?;
        ensure!(waiting > 0.0 && waiting <= BUDGET as f64, "{waiting} bytes wait");
        let grown = world.culvert.proxy.resident()?.saturating_sub(before);
        progress::say(&format!("    {waiting} bytes wait, the proxy's memory has grown by {grown}"));
        ensure!(grown <= BUDGET + BESIDE, "the proxy's memory has grown by {grown} bytes");
        held.check()?;
        let whole = world.client(&["download", &format!("edge-1:{SOURCE}")])?;
        ensure!(whole.starts_with(&format!("{GIB} ")), "{whole}");
        drop((stalled, held));
        world.wait_for_no_streams()
    });
}
