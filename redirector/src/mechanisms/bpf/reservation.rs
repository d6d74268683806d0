//! Reserves the intercept ports for the proxy, by the bind hooks. Connections are steered without
//! them too, so that they cannot be attached is no reason to end.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::maps::{Array, MapData};
use culvert_daemon::chain;
use culvert_redirector_common::ReservedPorts;
use culvert_redirector_common::names::RESERVED_MAP;

use super::cgroup::ROOT_INODE;
use super::tables::open;
use super::{Cilium, Hook, HookError, Hooks, Pins, TablesError, cgroup_id};
use crate::config::Config;

/// The bind hooks of this host and their map.
pub(super) struct PortReservation {
    pins: Pins,
    map: Array<MapData, ReservedPorts>,
    /// The cgroup of the hooks. Those at a smaller one would leave out other processes of the host.
    root: PathBuf,
    state: State,
}

enum State {
    /// The hooks are attached, or were until somebody removed them.
    Wanted,
    /// A Cilium on this host may not start beside them.
    BesideCilium(String),
    /// They could not be attached, and are tried again.
    Failed(String),
}

impl PortReservation {
    /// Opens the map; the programs have been loaded.
    pub(super) fn open(pins: &Pins, root: &Path) -> Result<Self, TablesError> {
        Ok(Self {
            pins: pins.clone(),
            map: open(pins, RESERVED_MAP)?,
            root: root.to_owned(),
            state: State::Wanted,
        })
    }

    /// Attaches the hooks if no Cilium stands against them.
    pub(super) fn attach(&mut self, hooks: &mut Hooks, config: &Config) {
        self.follow_cilium(config);
        if let State::BesideCilium(_) = self.state {
            return;
        }
        match hooks.attach_binding() {
            Ok(()) => self.state = State::Wanted,
            Err(error) => self.record_failure(&error),
        }
    }

    pub(super) fn record_failure(&mut self, error: &HookError) {
        let reason = chain(error);
        if self.problem() != Some(&reason) {
            tracing::warn!(reason, "bind hooks not installed");
        }
        self.state = State::Failed(reason);
    }

    /// Whether the hooks are wanted and could not be attached.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// Removes the hooks beside a Cilium that may not start with them. Once it has gone, they are
    /// wanted again.
    pub(super) fn follow_cilium(&mut self, config: &Config) {
        match (self.danger(config), &self.state) {
            (Some(danger), State::Wanted | State::Failed(_)) => {
                match self.pins.remove_binding() {
                    Ok(_removed) => tracing::warn!(danger, "no bind hooks beside Cilium"),
                    Err(error) => tracing::error!(error = chain(&error), "bind hooks stay"),
                }
                self.state = State::BesideCilium(danger);
            }
            (None, State::BesideCilium(_)) => self.state = State::Wanted,
            (Some(_), State::BesideCilium(_)) | (None, State::Wanted | State::Failed(_)) => {}
        }
    }

    fn danger(&self, config: &Config) -> Option<String> {
        if config.beside_cilium || cgroup_id(&self.root).ok() != Some(ROOT_INODE) {
            return None;
        }
        Cilium::find(self.pins.bpffs())?.against_bind_hooks()
    }

    /// Whether the hooks are attached, if they are wanted.
    pub(super) fn is_complete(&self) -> bool {
        match self.state {
            State::Wanted => {
                let hooks = Hook::read_binding(&self.pins);
                hooks.is_ok_and(|hooks| hooks.iter().all(Hook::is_attached))
            }
            State::BesideCilium(_) | State::Failed(_) => true,
        }
    }

    /// Why every user may listen on the intercept ports.
    pub(super) fn problem(&self) -> Option<&str> {
        match &self.state {
            State::Wanted => None,
            State::BesideCilium(reason) | State::Failed(reason) => Some(reason),
        }
    }

    /// Reserves the ports for the owner of the folder in which the proxy has its sockets. While the
    /// folder is away, the last owner counts.
    pub(super) fn renew(&mut self, config: &Config) -> Result<(), TablesError> {
        let before = read(&self.map)?;
        let owner = match std::fs::metadata(config.sockets_folder()) {
            Ok(folder) => folder.uid(),
            Err(_away) => before.owner,
        };
        let wanted = reserved_ports(&config.intercept.ports, owner);
        if wanted == before {
            return Ok(());
        }
        self.map
            .set(0, wanted, 0)
            .map_err(|source| TablesError::Write {
                map: RESERVED_MAP,
                source,
            })
    }
}

/// What the bind hooks read now.
pub(crate) fn read_reserved(pins: &Pins) -> Result<ReservedPorts, TablesError> {
    read(&open(pins, RESERVED_MAP)?)
}

fn read(map: &Array<MapData, ReservedPorts>) -> Result<ReservedPorts, TablesError> {
    map.get(&0, 0).map_err(|source| TablesError::Read {
        map: RESERVED_MAP,
        source,
    })
}

fn reserved_ports(intercept: &[u16], owner: u32) -> ReservedPorts {
    let mut reserved = ReservedPorts {
        owner,
        ..ReservedPorts::default()
    };
    for (slot, port) in reserved.ports.iter_mut().zip(intercept) {
        *slot = port.to_be();
    }
    reserved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_nftables_is_reserved_too() {
        let reserved = reserved_ports(&[7410, 7411, 7412, 7413], 990);
        assert_eq!(reserved.owner, 990);
        let ports = reserved.ports.map(u16::from_be);
        assert_eq!(ports, [7410, 7411, 7412, 7413, 0, 0, 0, 0]);
    }
}
