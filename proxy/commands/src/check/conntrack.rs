//! How full the kernel's table of connections is. Pure.

/// Files of `/proc`; empty where connections are not tracked.
#[derive(Clone, Debug, Default)]
pub(super) struct Conntrack {
    /// `/proc/sys/net/netfilter/nf_conntrack_count`.
    pub(super) count: String,
    /// `/proc/sys/net/netfilter/nf_conntrack_max`.
    pub(super) max: String,
    /// `/proc/net/stat/nf_conntrack`: names of columns, then a line for each processor, in
    /// hexadecimal.
    pub(super) stat: String,
}

/// What the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) entries: u64,
    pub(super) capacity: u64,
    /// Packets for which there was no entry, since the host started.
    pub(super) dropped: u64,
}

impl Conntrack {
    /// `None`: there is no table, or no limit.
    pub(super) fn filled(&self) -> Option<Filled> {
        let entries = self.count.trim().parse().ok()?;
        let capacity = self.max.trim().parse().ok()?;
        if capacity == 0 {
            return None;
        }
        Some(Filled {
            entries,
            capacity,
            dropped: self.dropped(),
        })
    }

    fn dropped(&self) -> u64 {
        let mut lines = self.stat.lines();
        let mut names = lines.next().unwrap_or_default().split_whitespace();
        let Some(column) = names.position(|name| name == "drop") else {
            return 0;
        };
        let mut dropped = 0;
        for line in lines {
            let count = line.split_whitespace().nth(column).unwrap_or_default();
            dropped += u64::from_str_radix(count, 16).unwrap_or(0);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_with_the_drops_of_all_processors() {
        let conntrack = Conntrack {
            count: "250000\n".into(),
            max: "262144\n".into(),
            stat: "entries  clashres found new drop early_drop\n\
                   0003d090  00000000 00000001 00000000 0000000a 00000000\n\
                   0003d090  00000000 00000000 00000000 00000010 00000000\n"
                .into(),
        };
        assert_eq!(
            conntrack.filled(),
            Some(Filled {
                entries: 250_000,
                capacity: 262_144,
                dropped: 26,
            })
        );
        assert_eq!(Conntrack::default().filled(), None);
        let unlimited = Conntrack {
            max: "0\n".into(),
            ..conntrack
        };
        assert_eq!(unlimited.filled(), None);
    }
}
