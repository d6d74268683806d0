//! The eBPF mechanism: attaches the programs, keeps the maps equal to the plan, and renews the
//! offline lease.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use culvert_api::installed::Refusal;
use culvert_redirector_common::{LOOPBACK, LOOPBACK_CIDR, SocketReach};
use nix::time::{ClockId, clock_gettime};

use super::reservation::PortReservation;
use super::{
    Cilium, CiliumCompatibility, Hook, HookError, Hooks, KernelConfig, MapChanges, PinError, Pins,
    Proof, ProofError, Tables, TablesError, cgroup_id, find_cgroup, kernel_config, prove,
    reach_of_host,
};
use crate::config::{Config, Intercept, NodeIps};
use crate::directory::Ranges;
use crate::plan::{Destination, Liveness, Plan};

/// How long the kernel programs trust the offline flags without a renewal.
const LEASE: Duration = Duration::from_secs(10);
/// Destinations read back per inspection, on average. Each takes two system calls.
const READ_BACK: usize = 8_000;

/// The installed mechanism.
pub(crate) struct EbpfMechanism {
    pins: Pins,
    cgroup: PathBuf,
    proof: Option<Proof>,
    tables: Tables,
    ports: PortReservation,
    config: KernelConfig,
    destinations: BTreeMap<Destination, Liveness>,
    /// Inspections since the destinations were read back.
    looks: usize,
}

/// Why the mechanism cannot be installed or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MechanismError {
    #[error(transparent)]
    Hooks(Box<HookError>),
    #[error(transparent)]
    Tables(#[from] TablesError),
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// Our hooks would prevent Cilium from starting.
    #[error("{0}")]
    Cilium(String),
    /// Our hooks would lead clients of the host to addresses that are not its own.
    #[error(
        "{LOOPBACK_CIDR} is not this host's own, as it is where lo is up and has 127.0.0.0/8: ip \
         address add 127.0.0.1/8 dev lo"
    )]
    NoLoopback,
    #[error(transparent)]
    Pins(#[from] PinError),
    #[error("read the monotonic clock")]
    Clock(#[source] nix::Error),
}

impl From<HookError> for MechanismError {
    fn from(error: HookError) -> Self {
        Self::Hooks(Box::new(error))
    }
}

/// What steers connections beside the hooks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OtherSteering {
    /// The nftables table.
    Nftables,
    /// Nothing.
    None,
}

impl EbpfMechanism {
    /// Installs everything. The programs are attached last, so that nothing is steered by an
    /// incomplete map. Without a plan the maps stay as an earlier redirector left them. Nothing is
    /// attached beside a Cilium that would then not start, unless the flag `--beside-cilium` is
    /// given.
    pub(crate) fn install(
        pins: &Pins,
        config: &Config,
        plan: Option<&Plan>,
    ) -> Result<Self, MechanismError> {
        let cgroup = find_cgroup(config.cgroup.as_deref()).map_err(HookError::from)?;
        let compatibility = compatibility(pins, &cgroup);
        if let Some(CiliumCompatibility::Conflicting(danger)) = &compatibility
            && !config.beside_cilium
        {
            return Err(MechanismError::Cilium(danger.clone()));
        }
        if config.intercept.node.v4.is_some() && !has_loopback_addresses() {
            return Err(MechanismError::NoLoopback);
        }
        let mut hooks = Hooks::open(pins.clone(), cgroup.clone(), config.hook_scope)?;
        hooks.load()?;
        let ports = PortReservation::open(pins, hooks.root())?;
        let mut mechanism = Self::open(pins.clone(), cgroup, ports)?;
        if let Some(plan) = plan {
            mechanism.apply(&config.intercept, plan)?;
        }
        mechanism.attach(&mut hooks)?;
        mechanism.ports.renew(config)?;
        mechanism.ports.attach(&mut hooks, config);
        let removed = mechanism.pins.remove_others()?;
        if !removed.is_empty() {
            tracing::info!(?removed, "removed hooks and maps of another version");
        }
        if let Some(compatibility) = compatibility {
            report_cilium(&compatibility);
        }
        Ok(mechanism)
    }

    /// Opens the maps and reads their content.
    fn open(pins: Pins, cgroup: PathBuf, ports: PortReservation) -> Result<Self, MechanismError> {
        let tables = Tables::open(&pins)?;
        Ok(Self {
            pins,
            cgroup,
            proof: None,
            config: tables.config()?,
            destinations: tables.destinations()?,
            tables,
            ports,
            looks: 0,
        })
    }

    fn attach(&self, hooks: &mut Hooks) -> Result<(), MechanismError> {
        for (program, change) in hooks.attach()? {
            tracing::info!(
                program,
                how = change.text(),
                cgroup = %self.cgroup.display(),
                "connect hook installed"
            );
        }
        if hooks.refusal() == Refusal::NotPermitted {
            tracing::info!(
                error = hooks.refusal().label(),
                "this kernel's connect hooks cannot choose the error of a refused connect; \
                 EHOSTUNREACH elsewhere"
            );
        }
        Ok(())
    }

    /// What to do if there is a Cilium on this host that cannot start beside our hooks.
    pub(crate) fn danger(&self) -> Option<String> {
        match compatibility(&self.pins, &self.cgroup) {
            Some(CiliumCompatibility::Conflicting(cilium)) => Some(cilium),
            Some(CiliumCompatibility::Compatible(_)) | None => None,
        }
    }

    /// Programs of others that run after our connect hooks, in the same cgroup.
    pub(crate) fn followers(&self) -> BTreeSet<u32> {
        let hooks = Hook::read_steering(&self.pins).unwrap_or_default();
        hooks
            .iter()
            .flat_map(|hook| hook.followers(&self.cgroup))
            .collect()
    }

    /// Makes the maps equal to the plan.
    pub(crate) fn apply(
        &mut self,
        intercept: &Intercept,
        plan: &Plan,
    ) -> Result<(), MechanismError> {
        let wanted = kernel_config(intercept, plan.ranges);
        let wanted = KernelConfig {
            offline_lease_ns: self.config.offline_lease_ns,
            nftables: self.config.nftables,
            ..wanted
        };
        if wanted != self.config {
            self.tables.set_config(&wanted)?;
            self.config = wanted;
        }
        let changed = match self
            .tables
            .set_destinations(&self.destinations, &plan.destinations)
        {
            Ok(changed) => changed,
            Err(error) => {
                // Some entries may have been written: the next attempt starts from what the map
                // contains.
                self.destinations = self.tables.destinations()?;
                return Err(error.into());
            }
        };
        self.destinations.clone_from(&plan.destinations);
        if changed != MapChanges::default() {
            tracing::debug!(
                written = changed.written,
                removed = changed.removed,
                "destinations changed"
            );
        }
        Ok(())
    }

    /// Corrects what another program has changed in the configuration and the destinations. Returns
    /// whether it corrected anything. It reads all destinations back only at some inspections.
    pub(crate) fn restore(&mut self) -> Result<bool, MechanismError> {
        let configured = self.tables.config()? == self.config;
        if !configured {
            self.tables.set_config(&self.config)?;
        }
        self.looks += 1;
        if self.looks <= self.destinations.len() / READ_BACK {
            return Ok(!configured);
        }
        self.looks = 0;
        let found = self.tables.destinations()?;
        let changed = self.tables.set_destinations(&found, &self.destinations)?;
        Ok(!configured || changed != MapChanges::default())
    }

    /// Whether it was tried that a connect is steered.
    pub(crate) fn is_proven(&self) -> bool {
        self.proof.is_some()
    }

    /// Checks once that a connect to a VIP of `ranges` is steered. Failed checks are repeated.
    pub(crate) fn prove(&mut self, node: NodeIps, ranges: Ranges) -> Result<(), MechanismError> {
        if self.proof.is_none()
            && let Some(vip) = vip_to_try(node, ranges)
        {
            let proof = prove(&self.pins, &self.cgroup, vip)?;
            tracing::info!(?proof, %vip, "tried the connect hooks");
            self.proof = Some(proof);
        }
        Ok(())
    }

    /// Tells the programs who steers beside them.
    pub(crate) fn share_with(&mut self, others: OtherSteering) -> Result<(), MechanismError> {
        let config = KernelConfig {
            nftables: match others {
                OtherSteering::Nftables => 1,
                OtherSteering::None => 0,
            },
            ..self.config
        };
        if config != self.config {
            self.tables.set_config(&config)?;
            self.config = config;
        }
        Ok(())
    }

    /// Extends the lease of the offline flags.
    pub(crate) fn renew_lease(&mut self) -> Result<(), MechanismError> {
        let lease = u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
        let config = KernelConfig {
            offline_lease_ns: now_ns()?.saturating_add(lease),
            ..self.config
        };
        self.tables.set_config(&config)?;
        self.config = config;
        Ok(())
    }

    /// Reserves the intercept ports again, for whom the proxy's sockets belong to now.
    pub(crate) fn reserve_ports(&mut self, config: &Config) -> Result<(), MechanismError> {
        Ok(self.ports.renew(config)?)
    }

    /// Removes the bind hooks beside a Cilium that may not start with them.
    pub(crate) fn follow_cilium(&mut self, config: &Config) {
        self.ports.follow_cilium(config);
    }

    /// Whether the bind hooks are wanted and could not be attached.
    pub(crate) fn lacks_bind_hooks(&self) -> bool {
        self.ports.has_failed()
    }

    /// Tries to attach the bind hooks again, and leaves those that steer alone.
    pub(crate) fn attach_bind_hooks(&mut self, config: &Config) {
        match Hooks::open(self.pins.clone(), self.cgroup.clone(), config.hook_scope) {
            Ok(mut hooks) => self.ports.attach(&mut hooks, config),
            Err(error) => self.ports.record_failure(&error),
        }
    }

    /// Why every user may listen on the intercept ports.
    pub(crate) fn unreserved(&self) -> Option<String> {
        self.ports.problem().map(str::to_owned)
    }

    /// Whether everything is still pinned and attached.
    pub(crate) fn is_complete(&self) -> bool {
        let attached =
            Hook::read_steering(&self.pins).is_ok_and(|hooks| hooks.iter().all(Hook::is_attached));
        attached && self.ports.is_complete() && self.pins.has_all_maps()
    }
}

/// A VIP of a family that this node has.
fn vip_to_try(node: NodeIps, ranges: Ranges) -> Option<IpAddr> {
    if node.v4.is_some()
        && let Some(range) = ranges.vip4
    {
        return Some(IpAddr::V4(range.network()));
    }
    if node.v6.is_some()
        && let Some(range) = ranges.vip6
    {
        return Some(IpAddr::V6(range.network()));
    }
    None
}

/// Whether the host has the addresses that its clients are steered to.
fn has_loopback_addresses() -> bool {
    if reach_of_host() == SocketReach::Node {
        return true;
    }
    let bound = UdpSocket::bind((LOOPBACK.addr.ip(), 0));
    !bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

fn report_cilium(compatibility: &CiliumCompatibility) {
    match compatibility {
        CiliumCompatibility::Compatible(cilium) => {
            tracing::info!(cilium, "Cilium is on this host");
        }
        CiliumCompatibility::Conflicting(cilium) => {
            tracing::warn!(cilium, "attached beside Cilium, as told");
        }
    }
}

/// Whether Cilium is on this host too, and tolerates hooks at `cgroup`.
fn compatibility(pins: &Pins, cgroup: &Path) -> Option<CiliumCompatibility> {
    Some(Cilium::find(pins.bpffs())?.beside(cgroup_id(cgroup).ok()?))
}

/// The kernel's `bpf_ktime_get_ns()`.
pub(crate) fn now_ns() -> Result<u64, MechanismError> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(MechanismError::Clock)?;
    Ok(u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX))
}
