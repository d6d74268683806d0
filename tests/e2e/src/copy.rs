//! `kubectl cp`, in both directions.

use std::io::Read;

use anyhow::{Context, Result, ensure};

use crate::pods;
use crate::world::World;

/// The size of the copied file: enough for many frames.
const SIZE: u64 = 5 << 20;

/// Copies a file to the pod on a node and back.
pub(super) fn prove(world: &mut World, node: &str) -> Result<()> {
    world.claim_once(
        &format!("kubectl cp to {node} and back: the same bytes"),
        |world| {
            let there = world.file(&format!("to-{node}"));
            let back = world.file(&format!("from-{node}"));
            let bytes = random_bytes()?;
            std::fs::write(&there, &bytes).with_context(|| format!("write {}", there.display()))?;
            let remote = format!("{}:/tmp/copied", pods::name(node));
            world.shop(&["cp", &there.display().to_string(), &remote])?;
            world.shop(&["cp", &remote, &back.display().to_string()])?;
            let returned =
                std::fs::read(&back).with_context(|| format!("read {}", back.display()))?;
            ensure!(
                returned == bytes,
                "{} bytes went, other {} came back",
                bytes.len(),
                returned.len()
            );
            Ok(())
        },
    )
}

fn random_bytes() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open("/dev/urandom")?
        .take(SIZE)
        .read_to_end(&mut bytes)
        .context("read /dev/urandom")?;
    Ok(bytes)
}
