//! The programs' counters, kept per CPU.

/// Index into the counters map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// A connect was steered into the proxy.
    Steered = 0,
    /// A connect matched no destination.
    Unmatched = 1,
    /// A connect passed because of its socket's mark.
    Exempt = 2,
    /// A connect was refused because its node is offline.
    Offline = 3,
    /// A connect was refused because there is no intercept address of its family.
    NoIntercept = 4,
    /// A connect was refused because the kernel had no capacity for the socket's storage.
    StorageFull = 5,
    /// A steered connection's destination could not be stored for the accepted socket; the proxy
    /// resets the connection.
    TupleFull = 6,
    /// A connection on one of the hooks' intercept ports was given its original destination.
    Accepted = 7,
    /// A connection on one of the hooks' intercept ports had no original destination: its tuple was
    /// lost, or it was dialled directly. Before Linux 5.15, connections to such a port in other network
    /// namespaces are counted here too. With a single intercept port, connections that nftables
    /// steers are counted here too.
    Unknown = 8,
    /// A bind to an intercept port was refused: its process is neither root's nor the proxy's user's.
    BindRefused = 9,
}

impl Counter {
    /// All counters, in the order of their indices.
    pub const ALL: [Self; 10] = [
        Self::Steered,
        Self::Unmatched,
        Self::Exempt,
        Self::Offline,
        Self::NoIntercept,
        Self::StorageFull,
        Self::TupleFull,
        Self::Accepted,
        Self::Unknown,
        Self::BindRefused,
    ];

    /// The name in metrics and `status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steered => "steered",
            Self::Unmatched => "unmatched",
            Self::Exempt => "exempt",
            Self::Offline => "offline",
            Self::NoIntercept => "no_intercept",
            Self::StorageFull => "storage_full",
            Self::TupleFull => "tuple_full",
            Self::Accepted => "accepted",
            Self::Unknown => "unknown",
            Self::BindRefused => "bind_refused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_order() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index, "{}", counter.name());
        }
    }
}
