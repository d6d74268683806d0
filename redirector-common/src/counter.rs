//! What the programs count, per CPU.

/// Index into the counters map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// A connect was steered into the proxy.
    Steered = 0,
    /// A connect matched nothing.
    Unmatched = 1,
    /// A connect passed because of its socket's mark.
    Exempt = 2,
    /// A connect was refused because its node is offline.
    Offline = 3,
    /// A connect was refused because there is no intercept address of its family.
    NoIntercept = 4,
    /// A connect was refused because the kernel had no room for the socket's storage.
    StorageFull = 5,
    /// A steered connection could not leave its destination for the accepted socket; the proxy
    /// resets it.
    TupleFull = 6,
    /// A connection on one of the hooks' intercept ports was given its original destination.
    Accepted = 7,
    /// A connection on one of the hooks' intercept ports came without one: its tuple was lost, or
    /// it was dialled directly. Where there is a single intercept port, those that nftables steers
    /// are counted here too.
    Unknown = 8,
}

impl Counter {
    /// All counters, in the order of their indices.
    pub const ALL: [Self; 9] = [
        Self::Steered,
        Self::Unmatched,
        Self::Exempt,
        Self::Offline,
        Self::NoIntercept,
        Self::StorageFull,
        Self::TupleFull,
        Self::Accepted,
        Self::Unknown,
    ];

    /// How metrics and `status` call it.
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
