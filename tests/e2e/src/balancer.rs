//! What stands before the proxies: one address of the cloud, whose connections go to the proxies in
//! turn. It is a plain forwarder, which does not notice a proxy that is gone.

use anyhow::Result;

use crate::cluster::{CLOUDS, MASTER};
use crate::world::World;

/// The port of the balancer on the master; `--advertise` of the e2e overlay names it.
const PORT: u16 = 443;

/// Starts to forward. Repeating it changes nothing.
pub(super) fn start(world: &World) -> Result<()> {
    let addresses = CLOUDS.map(|node| world.cluster.variable_of(node, "ADDRESS"));
    let addresses = addresses.into_iter().collect::<Result<Vec<_>>>()?;
    let own = world.cluster.variable_of(MASTER, "ADDRESS")?;
    world
        .cluster
        .on(MASTER, &["nft", &table(own, &addresses)])
        .map(drop)
}

/// Connections to other hosts come from the master's own address, so that the answers pass it.
fn table(own: &str, proxies: &[&str]) -> String {
    let backends: Vec<String> = proxies
        .iter()
        .enumerate()
        .map(|(turn, address)| format!("{turn} : {address} . 7400"))
        .collect();
    format!(
        "table ip e2e_balancer
        delete table ip e2e_balancer
        table ip e2e_balancer {{
            chain pre {{
                type nat hook prerouting priority dstnat;
                ip daddr {own} tcp dport {PORT} dnat to numgen inc mod {count} map {{ {all} }};
            }}
            chain post {{
                type nat hook postrouting priority srcnat;
                meta l4proto tcp ct original proto-dst {PORT} ip daddr != {own} masquerade;
            }}
        }}",
        count = proxies.len(),
        all = backends.join(", "),
    )
}
