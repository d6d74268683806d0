//! What is measured.

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Lower,
    Higher,
}

impl Better {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Lower => "lower is better",
            Self::Higher => "higher is better",
        }
    }
}

/// What we want of the hub.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aim {
    None,
    AtMost(f64),
    /// This part of what direct access has.
    OfDirect(f64),
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) aim: Aim,
}

const fn lower(name: &'static str, unit: &'static str, aim: Aim) -> Row {
    Row {
        name,
        unit,
        better: Better::Lower,
        aim,
    }
}

const fn higher(name: &'static str, unit: &'static str, aim: Aim) -> Row {
    Row {
        name,
        unit,
        better: Better::Higher,
        aim,
    }
}

/// All rows. Those with a number at their end are measured on that many connections, and those with
/// `rtt20` over a link of 20 ms.
pub(super) const ALL: &[Row] = &[
    lower("memory_idle", "MB", Aim::AtMost(15.0)),
    lower("memory_10000", "MB", Aim::AtMost(40.0)),
    higher("get_1", "1/s", Aim::OfDirect(0.9)),
    lower("get_p50_1", "us", Aim::None),
    higher("get_32", "1/s", Aim::None),
    lower("get_p99_32", "us", Aim::None),
    lower("get_cpu_1", "CPU-s/100k", Aim::None),
    higher("list_1", "1/s", Aim::OfDirect(0.9)),
    lower("list_p50_1", "us", Aim::None),
    lower("list_cpu_1", "CPU-s/100k", Aim::None),
    higher("get_1_rtt20", "1/s", Aim::OfDirect(0.95)),
    lower("get_p50_1_rtt20", "us", Aim::None),
    higher("get_32_rtt20", "1/s", Aim::None),
    higher("list_1_rtt20", "1/s", Aim::OfDirect(0.95)),
    lower("list_p50_1_rtt20", "us", Aim::None),
    lower("event_delay_p50", "us", Aim::None),
    lower("event_delay_p99", "us", Aim::None),
    lower("event_cpu", "CPU-s/1000", Aim::None),
    lower("disk_1000_events", "kB", Aim::None),
    lower("disk_flushes", "per 5 s", Aim::AtMost(1.0)),
    lower("cut_noticed", "s", Aim::AtMost(18.0)),
    lower("cut_longest_request", "s", Aim::AtMost(18.0)),
    lower("cut_errors", "requests", Aim::AtMost(0.0)),
    higher("offline_get_1", "1/s", Aim::None),
    higher("offline_get_32", "1/s", Aim::None),
    lower("offline_get_p99_32", "us", Aim::None),
    lower("offline_get_errors_32", "requests", Aim::AtMost(0.0)),
    higher("offline_list_1", "1/s", Aim::None),
    lower("offline_list_p99_1", "us", Aim::AtMost(2_000.0)),
    higher("offline_list_32", "1/s", Aim::None),
    lower("offline_list_errors_32", "requests", Aim::AtMost(0.0)),
    lower("watches_ended", "of 10", Aim::AtMost(0.0)),
    lower("return_seen", "s", Aim::None),
    lower("first_offline_answer", "s", Aim::AtMost(0.1)),
];

/// The row of that name.
pub(super) fn find(name: &str) -> Option<&'static Row> {
    ALL.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = ALL.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
