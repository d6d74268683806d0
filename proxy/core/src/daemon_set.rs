//! The DaemonSet that runs the redirectors of a cluster.

/// Whether the DaemonSet of redirectors has been deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DaemonSetStatus {
    /// None was seen so far: without a cluster, or with redirectors that are units of systemd.
    #[default]
    NotSeen,
    /// It exists.
    Exists,
    /// It existed, and now it is gone, or its deletion has begun.
    Deleted,
}
