//! `culvert-redirector status`: what is installed, straight from the kernel.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use culvert_redirector_common::names::SOCKOPS;
use culvert_redirector_common::{LOOPBACK_CIDR, ReservedPorts, SocketReach};

use crate::directory::SavedDirectory;
use crate::mechanisms::bpf::{
    Cilium, CiliumCompatibility, Hook, KernelConfig, Pins, Surroundings, Tables,
    bypassing_data_plane, now_ns, reach_of_host, read_reserved, refusal_of_this_kernel,
};
use crate::mechanisms::nft::{self, NftError};
use crate::mechanisms::vip_routes::Routes;
use crate::plan::Liveness;
use culvert_api::installed::{Mechanism, Refusal};

/// The status as text.
pub(crate) async fn status(bpffs: &Path, state_dir: &Path) -> Result<String> {
    let pins = Pins::new(bpffs);
    let mut out = String::new();
    mechanism(&mut out, &pins).await?;
    hooks(&mut out, &pins)?;
    line(&mut out, "refused with", &refusal())?;
    cilium(&mut out, &pins)?;
    if let Err(error) = tables(&mut out, &pins) {
        // The other lines are useful without this one.
        line(&mut out, "maps", &format!("{error:#}"))?;
    }
    line(&mut out, "nftables", &nftables().await)?;
    let routes = Routes::open()?.ours().await?;
    let routes: Vec<_> = routes.iter().map(|route| route.net.to_string()).collect();
    line(&mut out, "routes", &or_none(routes.join(", ")))?;
    line(&mut out, "directory", &saved(state_dir))?;
    Ok(out)
}

/// The mechanism that steers, and any that should steer and does not.
async fn mechanism(out: &mut String, pins: &Pins) -> Result<()> {
    let hooks = Hook::read_steering(pins)?;
    let attached = hooks.iter().filter(|hook| hook.is_attached()).count();
    let hooked = attached == hooks.len();
    let mut in_force = Mechanism::None;
    if hooked {
        in_force = in_force.with_ebpf();
    }
    if let Ok(Some(_)) = nft::read().await {
        in_force = in_force.with_nftables();
    }
    let why = match attached {
        0 => "; if hooks are asked for, /readyz of the daemon says why there are none",
        _ if hooked => "",
        _ => "; hooks are missing",
    };
    line(out, "mechanism", &format!("{}{why}", in_force.label()))?;
    if !hooked && let Some(data_plane) = bypassing_data_plane(pins.bpffs()) {
        line(
            out,
            "pods",
            &format!("not steered, most likely: {data_plane} carries their packets past nftables"),
        )?;
    }
    for link in pins.other_links() {
        let text = format!(
            "{} steers too: restart the redirector, or uninstall",
            link.display()
        );
        line(out, "other version", &text)?;
    }
    Ok(())
}

fn hooks(out: &mut String, pins: &Pins) -> Result<()> {
    for hook in Hook::read_all(pins)? {
        let text = match (hook.link, hook.program_id, hook.cgroup_id) {
            (Some(link), Some(program), Some(0)) => {
                format!(
                    "link {link}, program {program}: its cgroup is gone; restart the redirector"
                )
            }
            (Some(link), Some(program), Some(cgroup)) => {
                let around = match hook.surroundings() {
                    Some(found) => surroundings(&found),
                    None => cgroup.to_string(),
                };
                format!("link {link}, program {program}, cgroup {around}")
            }
            _ => "not attached".to_owned(),
        };
        line(out, hook.program, &text)?;
    }
    Ok(())
}

/// The error of a refused connect on this kernel.
fn refusal() -> String {
    match refusal_of_this_kernel() {
        Ok(Refusal::HostUnreachable) => Refusal::HostUnreachable.to_string(),
        Ok(Refusal::NotPermitted) => {
            format!(
                "{}: this kernel's connect hooks cannot choose the error",
                Refusal::NotPermitted
            )
        }
        Err(error) => format!("unknown: {}", culvert_daemon::chain(&error)),
    }
}

/// Prints the line only if Cilium is on this host: most hosts have none.
fn cilium(out: &mut String, pins: &Pins) -> Result<()> {
    let Some(cilium) = Cilium::find(pins.bpffs()) else {
        return Ok(());
    };
    let mut cgroup = 0;
    for hook in Hook::read_steering(pins)? {
        if hook.program != SOCKOPS
            && let Some(id) = hook.cgroup_id
        {
            cgroup = id;
            break;
        }
    }
    let (CiliumCompatibility::Compatible(text) | CiliumCompatibility::Conflicting(text)) =
        cilium.beside(cgroup);
    line(out, "cilium", &text)
}

/// The cgroup, and other programs there, which may refuse or change what ours decided.
fn surroundings(found: &Surroundings) -> String {
    let Surroundings {
        cgroup,
        before,
        after,
    } = found;
    format!(
        "{}{}{}",
        cgroup.display(),
        neighbours("before", before),
        neighbours("after", after)
    )
}

fn neighbours(when: &str, programs: &[u32]) -> String {
    if programs.is_empty() {
        return String::new();
    }
    let ids: Vec<_> = programs.iter().map(u32::to_string).collect();
    format!(
        "; {when} it runs program {} (bpftool prog show id N)",
        ids.join(", ")
    )
}

fn tables(out: &mut String, pins: &Pins) -> Result<()> {
    if !pins.any_map() {
        return line(out, "maps", "none pinned");
    }
    let tables = Tables::open(pins)?;
    let config = tables.config()?;
    line(out, "intercept", &intercept(&config))?;
    line(out, "reserved", &reserved(pins)?)?;
    line(out, "destinations", &destinations(&tables, &config)?)?;
    let counts: Vec<_> = tables
        .counts()?
        .iter()
        .map(|(counter, count)| format!("{} {count}", counter.name()))
        .collect();
    line(out, "connections", &counts.join(", "))
}

fn intercept(config: &KernelConfig) -> String {
    let mut addresses = Vec::new();
    if reach_of_host() == SocketReach::Loopback && !config.intercept4.is_none() {
        addresses.push(LOOPBACK_CIDR.to_owned());
    }
    for addr in [config.intercept4, config.intercept6] {
        if !addr.is_none() {
            addresses.push(addr.ip().to_string());
        }
    }
    format!(
        "{} ports {}",
        or_none(addresses.join(", ")),
        listed(&config.ports)
    )
}

/// Who may listen on the intercept ports.
fn reserved(pins: &Pins) -> Result<String> {
    let hooks = Hook::read_binding(pins)?;
    if !hooks.iter().all(Hook::is_attached) {
        return Ok("no ports: every user may listen on those of the proxy".to_owned());
    }
    let ReservedPorts { owner, ports } = read_reserved(pins)?;
    let users = match owner {
        0 => "root".to_owned(),
        owner => format!("root and user {owner}"),
    };
    Ok(format!("ports {} for {users}", listed(&ports)))
}

/// Ports in network order.
fn listed(ports: &[u16]) -> String {
    let mut used = Vec::new();
    for port in ports {
        if *port != 0 {
            used.push(u16::from_be(*port).to_string());
        }
    }
    or_none(used.join(", "))
}

fn destinations(tables: &Tables, config: &KernelConfig) -> Result<String> {
    let destinations = tables.destinations()?;
    let offline = destinations
        .values()
        .filter(|liveness| **liveness == Liveness::Offline)
        .count();
    let believed = if now_ns()? < config.offline_lease_ns {
        "refused at connect"
    } else {
        "steered: no redirector vouches for that"
    };
    Ok(format!(
        "{}, of which offline: {offline} ({believed})",
        destinations.len()
    ))
}

async fn nftables() -> String {
    match nft::read().await {
        Ok(Some(parts)) => {
            format!(
                "table inet culvert: {} sets, {} chains, {} rules",
                parts.sets, parts.chains, parts.rules
            )
        }
        Ok(None) => "no table inet culvert".to_owned(),
        Err(NftError::Missing) => "nft is not installed".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn saved(state_dir: &Path) -> String {
    match SavedDirectory::new(state_dir).load() {
        Ok(Some(directory)) => {
            format!(
                "revision {}, nodes: {}",
                directory.revision,
                directory.nodes.len()
            )
        }
        Ok(None) => "none saved".to_owned(),
        Err(error) => culvert_daemon::chain(&error),
    }
}

fn line(out: &mut String, name: &str, text: &str) -> Result<()> {
    Ok(writeln!(out, "{name:<13} {text}")?)
}

fn or_none(text: String) -> String {
    if text.is_empty() {
        "none".to_owned()
    } else {
        text
    }
}
