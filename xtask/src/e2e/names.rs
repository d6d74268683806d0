//! The API server dials nodes by name, and resolves through the redirector's DNS: also nodes that share an address.

use anyhow::{Context, Result, ensure};

use super::world::{EDGES, MASTER, World};
use super::{copy, exec, forward, healing, logs, metrics, pods};
use crate::self_signed::{AUTHORITY, SelfSigned};

/// What makes it ask for names before it takes addresses.
pub(super) const BY_NAME: &str = "--kubelet-preferred-address-types=Hostname,InternalIP";

/// The step.
pub(super) fn run(world: &mut World) -> Result<()> {
    world.claim(
        "an API server that trusts another authority refuses the kubelet's certificate: it is the kubelet's own",
        |world| {
            let other = SelfSigned::make(world.folder(), "other", "/CN=another", AUTHORITY)?;
            world.restart_apiserver(&[format!("--kubelet-certificate-authority={}", other.certificate.display())])?;
            let refused = world.shop(&["logs", &pods::name("edge-1")]);
            let error = refused.err().context("it took the certificate")?;
            ensure!(format!("{error:#}").contains("x509"), "it fails otherwise: {error:#}");
            Ok(())
        },
    )?;
    world.claim("the API server is restarted to dial nodes by name", |world| {
        world.restart_apiserver(&[BY_NAME.to_owned()])
    })?;
    healing::apiserver(world)?;
    logs::prove(world, MASTER)?;
    EDGES.into_iter().try_for_each(|node| everything(world, node))
}

/// All that kubectl does with a pod on a node.
pub(super) fn everything(world: &mut World, node: &str) -> Result<()> {
    logs::prove(world, node)?;
    exec::prove(world, node)?;
    forward::prove(world, node)?;
    copy::prove(world, node)?;
    metrics::prove_summary(world, node)
}
