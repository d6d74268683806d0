//! Hostile ends of a tunnel: an agent with a valid certificate of its own node, and a proxy with a
//! valid certificate of the authority that agents trust. They write HTTP/2 by hand and break its
//! rules; their victims are the real programs.

mod agent;
mod answers;
mod floods;
mod lies;
mod proxy;
mod strangers;
mod streams;
mod targets;
mod wire;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use culvert_lab::process::{KernelResources, Process};
use culvert_lab::progress;

use crate::life::wait_within;
use crate::world::{ECHO, HeldClient, World};

/// Between two tests of the bystanders. Without it their own messages would keep both tunnels busy.
const PAUSE: Duration = Duration::from_millis(50);

/// Clients of an honest node, connected before the attack.
struct Bystanders(HeldClient);

impl Bystanders {
    fn of(world: &World<'_>, node: &str) -> Result<Self> {
        let held = world.hold(format!("{node}:{ECHO}"), 20)?;
        Ok(Self(held))
    }

    /// Tests all their connections, and a new client of `node`.
    fn check(&mut self, world: &World<'_>, node: &str) -> Result<()> {
        self.0.check().context("connections from before")?;
        world.check_greeting(node, node).context("a new connection")
    }

    /// Runs an attack, and tests the bystanders repeatedly meanwhile.
    fn during<T: Send>(
        &mut self,
        world: &World<'_>,
        node: &str,
        harm: impl FnOnce() -> T + Send,
    ) -> Result<T> {
        std::thread::scope(|scope| {
            let harm = scope.spawn(harm);
            loop {
                self.check(world, node)?;
                if harm.is_finished() {
                    return harm
                        .join()
                        .map_err(|_| anyhow::anyhow!("the harm panicked"));
                }
                std::thread::sleep(PAUSE);
            }
        })
    }
}

/// The state of a victim before the attack.
struct Before {
    who: &'static str,
    resources: KernelResources,
    resident: u64,
}

impl Before {
    fn of(who: &'static str, victim: &Process) -> Result<Self> {
        Ok(Self {
            who,
            resources: victim.kernel_resources()?,
            resident: victim.resident()?,
        })
    }

    /// Fails if the victim has grown by more than `limit` since then, or has ended.
    fn check_memory(&self, victim: &mut Process, limit: u64, after: &str) -> Result<()> {
        victim.check()?;
        let grown = victim.resident()?.saturating_sub(self.resident);
        progress::say(&format!(
            "    {after}: {} has grown by {} KiB",
            self.who,
            grown >> 10
        ));
        ensure!(
            grown <= limit,
            "{after}: {} grew by {grown} bytes, more than {limit}",
            self.who
        );
        Ok(())
    }

    /// Waits until the victim has no more files and threads than before.
    fn wait_restored(&self, victim: &Process) -> Result<()> {
        wait_within(self.who, victim, self.resources)
    }
}
