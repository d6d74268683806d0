//! Wall clocks that jump must affect only certificates and tokens. `examples/jumping_clock.rs` sets
//! the clocks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use culvert_lab::culvert::Options;
use culvert_lab::cut::Cut;
use culvert_lab::host::Host;
use culvert_lab::probe::{Cause, Client};
use culvert_lab::wait::{self, PATIENCE};
use culvert_lab::{Lab, LogLine, progress, workspace};

use super::expect_idle;
use crate::world::{self, ECHO, World};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The host whose clock jumps.
#[derive(Clone, Copy, Debug)]
enum Clock {
    /// The cloud's clock, for the proxy and the redirector.
    Cloud,
    Edge,
}

impl Clock {
    const BOTH: [Self; 2] = [Self::Cloud, Self::Edge];

    fn file(self, lab: &Lab) -> PathBuf {
        let host = match self {
            Self::Cloud => Host::Cloud,
            Self::Edge => Host::Edge1,
        };
        lab.site(host).file("clock")
    }

    fn environment(self, lab: &Lab) -> Vec<(String, String)> {
        let library = workspace::example("libjumping_clock.so");
        let file = self.file(lab);
        let text = |path: PathBuf| path.display().to_string();
        vec![
            ("LD_PRELOAD".into(), text(library)),
            ("JUMPING_CLOCK".into(), text(file)),
        ]
    }

    /// Shifts the clock by that many seconds from now on.
    fn set(self, lab: &Lab, seconds: i64) -> Result<()> {
        // Replaced atomically: a program must not read half of the value.
        let (file, next) = (self.file(lab), self.file(lab).with_extension("next"));
        std::fs::write(&next, seconds.to_string())?;
        Ok(std::fs::rename(next, file)?)
    }
}

fn with_clocks(test: impl FnOnce(&mut World<'_>) -> Result<()>) {
    let options = |lab: &Lab| {
        let library = workspace::example("libjumping_clock.so");
        ensure!(
            library.exists(),
            "{} is missing: `cargo build --workspace --examples` makes it",
            library.display()
        );
        let cloud_env = Clock::Cloud.environment(lab);
        let agent_env = Clock::Edge.environment(lab);
        Ok(Options {
            cloud_env,
            agent_env,
            ..Options::default()
        })
    };
    world::prepared(&[Host::Edge1], options, test);
}

#[test]
fn no_jump_of_a_clock_ends_a_tunnel_or_a_stream_or_keeps_a_program_busy() {
    with_clocks(|world| {
        let mut held = world.hold(format!("edge-1:{ECHO}"), 10)?;
        let tunnels = world.numbers_of_all_tunnels()?;
        for clock in Clock::BOTH {
            for days in [1, 31, -40, 0] {
                clock.set(world.lab, days * DAY)?;
                progress::say(&format!("    {clock:?}: {days} days off"));
                let look = Duration::from_secs(1);
                expect_idle("the proxy", &world.culvert.proxy, look, || Ok(()))?;
                expect_idle("the redirector", &world.culvert.redirector, look, || Ok(()))?;
                expect_idle("the agent", world.culvert.agent(0), look, || Ok(()))?;
                held.check()?;
                for host in ["10.0.3.7", "edge-1"] {
                    world.check_greeting(host, "edge-1")?;
                }
                let now = world.tunnel_numbers()?;
                ensure!(
                    now == tunnels,
                    "{days} days: tunnels {now:?}, before {tunnels:?}"
                );
            }
            seen_in_its_log(world, clock)?;
        }
        Ok(())
    });
}

#[test]
fn silence_and_retries_are_timed_by_no_wall_clock() {
    with_clocks(|world| {
        let jump = |hours: i64| {
            Clock::BOTH
                .iter()
                .try_for_each(|clock| clock.set(world.lab, hours * HOUR))
        };
        // Forward during a cut that tunnels survive, back during one that ends them. Certificates
        // are valid at both times.
        let tunnels = world.numbers_of_all_tunnels()?;
        let cut = Cut::of(world.lab, Host::Edge1)?;
        jump(12)?;
        wait::throughout("the cut lasts", Duration::from_secs(5), || Ok(()))?;
        drop(cut);
        world.check_greeting("edge-1", "edge-1")?;
        ensure!(world.tunnel_numbers()? == tunnels, "a tunnel was replaced");
        let cut = Cut::of(world.lab, Host::Edge1)?;
        jump(-12)?;
        world.culvert.wait_offline(Host::Edge1, PATIENCE)?;
        wait::until("the kernel says that the node is away", PATIENCE, || {
            let refused = world.failing_client(&Client::dial(
                format!("10.0.3.7:{ECHO}"),
                Duration::from_millis(500),
            ))?;
            ensure!(refused.cause == Cause::Unreachable, "{refused}");
            Ok(())
        })?;
        jump(0)?;
        drop(cut);
        world.wait_greeting("edge-1", PATIENCE)
    });
}

/// Fails unless the timestamps of a program's log show that its clock was shifted.
fn seen_in_its_log(world: &mut World<'_>, clock: Clock) -> Result<()> {
    let lines = match clock {
        Clock::Cloud => world.culvert.proxy.log_lines(),
        Clock::Edge => world.culvert.agent(0).log_lines(),
    };
    let date = |line: &LogLine| Some(line.timestamp.split_once('T')?.0.to_owned());
    let dates: std::collections::BTreeSet<_> = lines.iter().filter_map(date).collect();
    ensure!(dates.len() >= 4, "the clock never jumped: {dates:?}");
    Ok(())
}
