//! The hub's metrics, `culvert_hub_*`.

use std::sync::atomic::Ordering;

use culvert_daemon::VERSION;
use http::{Response, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use strum::{IntoStaticStr, VariantArray, VariantNames};

use crate::identity::Proof;
use crate::memory::DiskStatus;
use crate::refusal;
use crate::upstream::Body;
use crate::upstream::watcher::LinkStatus;
use crate::wire::split::SplitError;

/// What a filter changes. The word is a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum FilterKind {
    /// The service `default/kubernetes` leads to the pod port.
    MasterService,
    /// Pods trust the local authority too.
    RootCa,
}

/// What the names of all metrics begin with.
pub(crate) const PREFIX: &str = "culvert_hub";

/// Why a copy is behind, beside that the answer cannot be split.
pub(crate) const QUEUE_FULL: &str = "queue_full";
pub(crate) const GAP: &str = "gap";
pub(crate) const DOCUMENT_TOO_LONG: &str = "document_too_long";

/// One label, and two. Their values are small fixed sets.
type Label = [(&'static str, &'static str); 1];
type Labels = [(&'static str, &'static str); 2];

/// Who answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Answer {
    Upstream,
    /// From memory.
    Local,
    /// 503: the API server is not reached, and memory does not have it.
    Unavailable,
    /// Refused by the hub's own rules: no credential, or too many requests.
    Refused,
}

impl Answer {
    pub(crate) fn of(answer: &Response<Body>) -> Self {
        match answer.headers().get(refusal::HEADER) {
            None => Self::Upstream,
            Some(value) if value != "refused" => Self::Local,
            Some(_) if answer.status() == StatusCode::SERVICE_UNAVAILABLE => Self::Unavailable,
            Some(_) => Self::Refused,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        self.into()
    }
}

/// What came of opening a watch again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Splice {
    Resumed,
    /// The API server had forgotten what happened; the client was told the differences.
    Relisted,
    /// The same, and it was not known what the client has: it lists itself.
    Gone,
    Refused,
}

/// What became of an event that could not be sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum EventFate {
    Queued,
    /// There were too many.
    Dropped,
    Sent,
    /// The API server did not take it.
    Refused,
}

/// All of the hub's metrics.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    link_up: Gauge,
    pods_link_up: Gauge,
    link_changes: Counter,
    requests: Family<Labels, Counter>,
    copies_behind: Family<Label, Counter>,
    splices: Family<Label, Counter>,
    events: Family<Label, Counter>,
    filter_failures: Family<Label, Counter>,
    unread_answers: Counter,
    disk: Disk,
}

/// What was written to the disk.
#[derive(Debug, Default)]
struct Disk {
    commits: Counter,
    written_bytes: Counter,
    errors: Counter,
    /// Whether the last write succeeded.
    writable: Gauge,
}

impl Metrics {
    /// Creates the metrics and registers them with the admin server's registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for &identity_kind in Proof::VARIANTS {
            for answer in Answer::VARIANTS {
                let labels = [("identity_kind", identity_kind), ("answer", answer.label())];
                drop(metrics.requests.get_or_create(&labels));
            }
        }
        for &reason in [QUEUE_FULL, GAP, DOCUMENT_TOO_LONG]
            .iter()
            .chain(SplitError::VARIANTS)
        {
            drop(metrics.copies_behind.get_or_create(&[("reason", reason)]));
        }
        for splice in Splice::VARIANTS {
            drop(metrics.splices.get_or_create(&[("result", splice.into())]));
        }
        for fate in EventFate::VARIANTS {
            drop(metrics.events.get_or_create(&[("result", fate.into())]));
        }
        for filter in FilterKind::VARIANTS {
            let label = [("filter", filter.into())];
            drop(metrics.filter_failures.get_or_create(&label));
        }
        let prefixed = registry.sub_registry_with_prefix(PREFIX);
        let build = Info::new([("version", VERSION)]);
        prefixed.register("build", "Version of the hub", build);
        prefixed.register(
            "link_up",
            "Whether the API server can be reached, and takes the node's certificate",
            metrics.link_up.clone(),
        );
        prefixed.register(
            "pods_link_up",
            "Whether the API server can be reached, whatever it says of the node's certificate",
            metrics.pods_link_up.clone(),
        );
        prefixed.register(
            "link_changes",
            "Changes of the link to the API server",
            metrics.link_changes.clone(),
        );
        prefixed.register(
            "requests",
            "Requests, by who asked and who answered",
            metrics.requests.clone(),
        );
        prefixed.register(
            "copies_behind",
            "Copies of answers that were given up, by why",
            metrics.copies_behind.clone(),
        );
        prefixed.register(
            "splices",
            "Watches that were opened again after a cut, by what came of it",
            metrics.splices.clone(),
        );
        prefixed.register(
            "events",
            "Kubernetes events that were queued without a link, by what came of it",
            metrics.events.clone(),
        );
        metrics.disk.register(prefixed);
        prefixed.register(
            "unread_answers",
            "Answers that were ended because their clients did not read them",
            metrics.unread_answers.clone(),
        );
        prefixed.register(
            "filter_failures",
            "Answers that a filter did not understand and has passed on unchanged",
            metrics.filter_failures.clone(),
        );
        metrics
    }

    pub(crate) fn answered(&self, identity_kind: &'static str, answer: Answer) {
        let labels = [("identity_kind", identity_kind), ("answer", answer.label())];
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn copy_is_behind(&self, reason: &'static str) {
        self.copies_behind
            .get_or_create(&[("reason", reason)])
            .inc();
    }

    pub(crate) fn spliced(&self, splice: Splice) {
        self.splices
            .get_or_create(&[("result", splice.into())])
            .inc();
    }

    pub(crate) fn events(&self, fate: EventFate, count: u64) {
        let labels = [("result", fate.into())];
        self.events.get_or_create(&labels).inc_by(count);
    }

    pub(crate) fn disk_is(&self, status: &DiskStatus) {
        for (counter, count) in [
            (&self.disk.commits, status.commits),
            (&self.disk.written_bytes, status.written_bytes),
            (&self.disk.errors, status.errors),
        ] {
            counter.inner().store(count, Ordering::Relaxed);
        }
        self.disk
            .writable
            .set(i64::from(status.last_error.is_none()));
    }

    pub(crate) fn answer_was_unread(&self) {
        self.unread_answers.inc();
    }

    pub(crate) fn filter_failed(&self, filter: FilterKind) {
        self.filter_failures
            .get_or_create(&[("filter", filter.into())])
            .inc();
    }

    #[cfg(test)]
    pub(crate) fn filter_failures(&self, filter: FilterKind) -> u64 {
        let label = [("filter", filter.into())];
        self.filter_failures.get_or_create(&label).get()
    }

    pub(crate) fn link_of_pods_is(&self, status: &LinkStatus) {
        self.pods_link_up.set(i64::from(status.is_up()));
    }

    pub(crate) fn link_is(&self, status: &LinkStatus) {
        let up = i64::from(status.is_up());
        if self.link_up.get() != up {
            self.link_changes.inc();
        }
        self.link_up.set(up);
    }
}

impl Disk {
    fn register(&self, registry: &mut Registry) {
        registry.register("store_commits", "Batches on the disk", self.commits.clone());
        registry.register_with_unit(
            "store_written",
            "Written to the disk",
            Unit::Bytes,
            self.written_bytes.clone(),
        );
        registry.register(
            "store_errors",
            "Batches that could not be written; what is in them is written later",
            self.errors.clone(),
        );
        registry.register(
            "store_writable",
            "Whether the last batch was written",
            self.writable.clone(),
        );
    }
}
