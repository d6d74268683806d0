//! Installs the connect hooks, checks them, removes them where they do harm, and tries again.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use culvert_daemon::chain;

use super::Steering;
use crate::config::Config;
use crate::mechanisms::bpf::HookError;
use crate::mechanisms::bpf::{EbpfMechanism, MechanismError};
use crate::metrics::{Drift, Repair};
use crate::plan::Plan;
use culvert_api::installed::Mechanism;

/// Longest pause between attempts to install hooks, in inspections: one minute. The pauses double.
const RAREST: u32 = 12;
/// Inspections for which a Cilium without hooks like ours may still be starting.
const PATIENCE: u32 = 4;
/// How many other programs the hooks move behind. After that they stop: a program that insists on
/// being last wins.
const FOLLOWERS: usize = 64;

/// Problems with the hooks so far.
#[derive(Default)]
pub(super) struct HookHealth {
    fallback: Option<Fallback>,
    /// While the bind hooks cannot be installed.
    without_bind_hooks: Option<Pause>,
    /// Consecutive inspections that found a Cilium in conflict with the hooks.
    conflicts: u32,
    /// Other programs after which the hooks have moved.
    followed: BTreeSet<u32>,
}

/// Hooks that were asked for and could not be installed, so nftables steers alone.
struct Fallback {
    reason: String,
    pause: Pause,
}

/// Inspections between two attempts.
#[derive(Clone, Copy)]
struct Pause {
    length: u32,
    left: u32,
}

impl Pause {
    const FIRST: Self = Self { length: 1, left: 1 };

    fn next(self) -> Self {
        let length = (self.length * 2).min(RAREST);
        Self {
            length,
            left: length,
        }
    }

    /// Counts down to the next attempt.
    fn is_over(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

impl HookHealth {
    /// Why nftables alone steers.
    pub(super) fn fallback(&self) -> Option<&str> {
        self.fallback
            .as_ref()
            .map(|fallback| fallback.reason.as_str())
    }

    /// Whether a Cilium is in conflict with the hooks for too long.
    pub(super) fn is_in_conflict(&self) -> bool {
        self.conflicts >= PATIENCE
    }

    /// Counts down to the next attempt.
    fn is_due(&mut self) -> bool {
        match &mut self.fallback {
            Some(fallback) => fallback.pause.is_over(),
            None => false,
        }
    }

    fn fell_back(&mut self, reason: String) {
        let pause = match &self.fallback {
            Some(earlier) => earlier.pause.next(),
            None => Pause::FIRST,
        };
        if self.fallback() != Some(&reason) {
            tracing::warn!(
                reason,
                "connect hooks not installed; nftables alone steers connections"
            );
        }
        self.fallback = Some(Fallback { reason, pause });
    }

    /// Bind hooks that another program tolerated none of may be attached once it has gone.
    fn restore_bind_hooks(&mut self, ebpf: &mut EbpfMechanism, config: &Config) {
        if !ebpf.lacks_bind_hooks() {
            self.without_bind_hooks = None;
            return;
        }
        let pause = self.without_bind_hooks.get_or_insert(Pause::FIRST);
        if pause.is_over() {
            *pause = pause.next();
            ebpf.attach_bind_hooks(config);
        }
    }

    /// Whether there are followers after which the hooks have not moved yet.
    fn is_overtaken(&mut self, followers: BTreeSet<u32>) -> bool {
        let is_news = self.followed.len() < FOLLOWERS && !followers.is_subset(&self.followed);
        self.followed.extend(followers);
        is_news
    }
}

impl Steering {
    /// An error is fatal, unless nftables can carry everything and no earlier redirector's hook
    /// still runs with old tables.
    pub(super) fn install_hooks(&mut self, known: Option<&Plan>) -> Result<()> {
        if !self.config.mechanism.has_ebpf() {
            self.gates.hooks.open();
            return Ok(());
        }
        let earlier = self.pins.any_link();
        match EbpfMechanism::install(&self.pins, &self.config, known) {
            Ok(ebpf) => {
                self.ebpf = Some(ebpf);
                self.hooks.fallback = None;
                self.progress.hooked = true;
                self.gates.hooks.open();
                Ok(())
            }
            Err(error) => self.do_without_hooks(error, earlier),
        }
    }

    /// `earlier`: hooks of an earlier redirector were there before the attempt.
    fn do_without_hooks(&mut self, error: MechanismError, earlier: bool) -> Result<()> {
        let no_cgroup = matches!(&error, MechanismError::Hooks(error)
            if matches!(**error, HookError::Cgroup(_)));
        let wrong_cgroup = self.config.cgroup.is_some() && no_cgroup;
        let harmful = matches!(
            error,
            MechanismError::Cilium(_) | MechanismError::NoLoopback
        );
        if !earlier {
            self.pins
                .remove_links()
                .context("remove what was half installed")?;
        }
        if self.config.mechanism != Mechanism::Both || wrong_cgroup || (earlier && !harmful) {
            return Err(error).context("install the connect hooks (other mechanisms: --mechanism)");
        }
        if !earlier {
            self.pins
                .remove()
                .context("remove what was half installed")?;
        }
        self.fall_back(chain(&error));
        Ok(())
    }

    /// From now on nftables alone steers. Attached hooks are removed once it does.
    fn fall_back(&mut self, reason: String) {
        self.ebpf = None;
        self.progress.hooked = false;
        self.progress.incomplete = true;
        self.hooks.fell_back(reason);
        self.gates.hooks.open();
    }

    /// Removes hooks that were given up, once nftables steers in their place. Their maps stay for
    /// open connections.
    pub(super) fn retire_hooks(&mut self) {
        if self.hooks.fallback.is_none() || !self.progress.table || !self.pins.any_link() {
            return;
        }
        match self.pins.remove_links() {
            Ok(removed) => tracing::warn!(?removed, "took the connect hooks away"),
            Err(error) => {
                let reason = chain(&error);
                tracing::error!(reason, "connect hooks not taken away");
                self.gates.hooks.close(reason);
                self.progress.incomplete = true;
            }
        }
    }

    /// Installs removed hooks again, moves behind programs that were attached later, gives way to a
    /// Cilium in conflict, and retries failed installations.
    pub(super) fn restore_hooks(&mut self) {
        let Some(ebpf) = &mut self.ebpf else {
            return self.try_hooks_again();
        };
        ebpf.follow_cilium(&self.config);
        if !ebpf.is_complete() {
            tracing::warn!(
                "another program removed connect hooks or their pins; installing them again"
            );
            return self.reinstall_hooks();
        }
        let followers = ebpf.followers();
        self.hooks.restore_bind_hooks(ebpf, &self.config);
        if !self.config.beside_cilium
            && let Some(danger) = ebpf.danger()
        {
            return self.handle_conflict(danger);
        }
        if self.hooks.is_in_conflict() {
            self.gates.hooks.open();
        }
        self.hooks.conflicts = 0;
        if self.hooks.is_overtaken(followers) {
            tracing::info!(
                "other programs were attached after the connect hooks; moving the hooks after them"
            );
            self.reinstall_hooks();
        }
    }

    fn reinstall_hooks(&mut self) {
        // A hook that was missing has not counted.
        self.recent.hooks.clear();
        let known = self.plan();
        match self.install_hooks(known.as_ref()) {
            Ok(()) => self.repaired(Drift::Hooks),
            Err(error) => {
                let reason = format!("{error:#}");
                tracing::error!(reason, "connect hooks not installed");
                self.progress.hooked = false;
                self.gates.hooks.close(reason);
                self.metrics.record_drift(Drift::Hooks, Repair::Failed);
            }
        }
    }

    /// A Cilium on this host cannot start beside the hooks, unless it is about to attach hooks like
    /// them.
    fn handle_conflict(&mut self, danger: String) {
        self.hooks.conflicts = self.hooks.conflicts.saturating_add(1);
        if !self.hooks.is_in_conflict() {
            return;
        }
        if self.config.mechanism == Mechanism::Both && self.nft.is_some() {
            self.hooks.conflicts = 0;
            return self.fall_back(danger);
        }
        // Nothing else steers, and an unsteered connection dials the real address.
        if self.hooks.conflicts == PATIENCE {
            tracing::error!(danger, "the connect hooks stay: nothing else steers");
        }
        self.gates.hooks.close(danger);
    }

    /// The BPF file system may be mounted late, or an AppArmor profile lifted.
    fn try_hooks_again(&mut self) {
        if !self.hooks.is_due() {
            return;
        }
        if let Err(error) = self.lock.extend(&self.config.bpffs) {
            return self.fall_back(chain(&error));
        }
        let known = self.plan();
        match self.install_hooks(known.as_ref()) {
            Ok(()) if self.ebpf.is_some() => {
                tracing::info!("connect hooks installed after all");
                // `apply` proves that they steer.
                self.progress.incomplete = true;
            }
            Ok(()) => {}
            Err(error) => self.fall_back(format!("{error:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_and_never_end() {
        let mut health = HookHealth::default();
        assert!(!health.is_due(), "nothing is missing");
        let pauses = [1, 2, 4, 8, 12, 12].map(|expected| {
            health.fell_back("no BPF file system".into());
            let pause = (1..).find(|_inspection| health.is_due()).unwrap();
            assert_eq!(pause, expected);
            pause
        });
        assert_eq!(health.fallback(), Some("no BPF file system"), "{pauses:?}");
    }

    #[test]
    fn hooks_go_behind_each_program_once() {
        let mut health = HookHealth::default();
        assert!(!health.is_overtaken(BTreeSet::new()));
        assert!(health.is_overtaken([7].into()));
        assert!(!health.is_overtaken([7].into()), "it insists");
        assert!(health.is_overtaken([7, 8].into()));
        let news = (100..)
            .filter(|program| health.is_overtaken([*program].into()))
            .take(FOLLOWERS - 2);
        assert_eq!(news.count(), FOLLOWERS - 2);
        assert!(!health.is_overtaken([9].into()), "enough");
    }
}
