//! The mechanism that steers connections now, and why it differs from the flags.

use super::Steering;
use crate::mechanisms::bpf::{EbpfMechanism, bypassing_data_plane, leaves_pods_out};
use crate::mechanisms::nft::NftTable;
use culvert_api::installed::{HookScope, Mechanism};

/// What the daemon reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InForce {
    pub(crate) mechanism: Mechanism,
    /// Why the connect hooks that were asked for are not there.
    pub(crate) fallback: Option<String>,
    /// Why nothing sees pods' connections.
    pub(crate) unseen_pods: Option<String>,
    /// Why nothing keeps the connections that nftables steers while all rules are flushed.
    pub(crate) keeper_problem: Option<String>,
    /// Why every user may listen on the intercept ports, where hooks are.
    pub(crate) unreserved: Option<String>,
}

impl InForce {
    /// State before anything is installed.
    pub(crate) const NOTHING: Self = Self {
        mechanism: Mechanism::None,
        fallback: None,
        unseen_pods: None,
        keeper_problem: None,
        unreserved: None,
    };
}

impl Steering {
    /// Publishes what is in force to the admin server, the gates and the metrics.
    pub(super) fn publish(&mut self) {
        let now = self.now_in_force();
        match &now.unseen_pods {
            Some(reason) if !self.config.accept_unseen_pods => {
                self.gates.pods.close(reason.clone());
            }
            _ => self.gates.pods.open(),
        }
        let remark = now.fallback.as_ref();
        self.gates
            .hooks
            .remark(remark.map(|reason| format!("nftables alone steers connections: {reason}")));
        self.metrics.set_mechanism(now.mechanism);
        self.in_force.send_if_modified(|before| {
            let is_news = *before != now;
            if is_news {
                tracing::info!(mechanism = now.mechanism.label(), "in force");
                *before = now;
            }
            is_news
        });
    }

    fn now_in_force(&self) -> InForce {
        let mut mechanism = Mechanism::None;
        if self.ebpf.is_some() && self.progress.hooked {
            mechanism = mechanism.with_ebpf();
        }
        if self.nft.is_some() && self.progress.table {
            mechanism = mechanism.with_nftables();
        }
        let fallback = self.hooks.fallback();
        let unseen_pods = if self.config.mechanism == Mechanism::None || self.sees_pods(mechanism) {
            None
        } else if let Some(data_plane) = bypassing_data_plane(&self.config.bpffs) {
            Some(unseen_pods(data_plane, fallback))
        } else if self.config.mechanism == Mechanism::Both && mechanism == Mechanism::Ebpf {
            Some(NO_NFTABLES.to_owned())
        } else {
            None
        };
        InForce {
            mechanism,
            fallback: fallback.map(str::to_owned),
            unseen_pods,
            keeper_problem: self.nft.as_ref().and_then(NftTable::keeper_problem),
            unreserved: self.ebpf.as_ref().and_then(EbpfMechanism::unreserved),
        }
    }

    /// Whether connect hooks see pods' connections.
    fn sees_pods(&self, mechanism: Mechanism) -> bool {
        let cgroup = self.config.cgroup.as_deref();
        mechanism.has_ebpf()
            && self.config.hook_scope == HookScope::All
            && !cgroup.is_some_and(leaves_pods_out)
    }
}

/// Why pods' connections are not steered by hooks alone.
const NO_NFTABLES: &str = "connect hooks leave pods to nftables, which does not steer: install the \
     package nftables, or set --hooks all. If no pod here dials edge nodes: --accept-unseen-pods";

/// Why pods' connections are not steered on a host with this data plane.
fn unseen_pods(data_plane: &str, fallback: Option<&str>) -> String {
    let why = match fallback {
        Some(fallback) => format!("connect hooks are not installed: {fallback}"),
        None => {
            "connect hooks do not look at pods: they do with --hooks all, --mechanism both and \
                 no --cgroup"
                .to_owned()
        }
    };
    format!(
        "{data_plane} is on this host and most likely carries pods' packets past nftables, and \
         {why}. \
         If no pod here dials edge nodes: --accept-unseen-pods"
    )
}
