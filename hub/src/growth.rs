//! What clients other than the node can make the process grow by, if they reach all limits at once.
//! Each limit is where it is enforced; here is their sum. Objects that they are allowed to read are
//! not in it: [`crate::cache::Bounds`] limits these.

use crate::budget;
use crate::cache::limits as cache;
use crate::guests::{MAX_KNOWN, MAX_SILENT, MAX_UNKNOWN, MAX_UPGRADED};
use crate::limits::{ALL_OTHERS_LONG, ALL_OTHERS_SHORT};
use crate::memory::{MAX_TOKENS, TOKEN};
use crate::server::port::{MAX_HEAD, TLS_BUFFER};
use crate::store::WRITE_AT;
use crate::upstream::upgrade::MAX_STARTING;

/// What is promised in docs/hub.md.
const MAX: usize = 64 << 20;

/// An idle connection: TLS and HTTP/2. Measured with a debug build, rounded up.
const CONNECTION: usize = 33 << 10;
/// A watch, besides its bytes. Measured with a debug build, rounded up.
const REQUEST: usize = 26 << 10;

/// A line of the sum.
struct Part {
    /// As in docs/hub.md.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test compares it with the page")
    )]
    name: &'static str,
    count: usize,
    bytes: usize,
}

const GUESTS: usize = MAX_SILENT + MAX_UNKNOWN + MAX_KNOWN;

const PARTS: [Part; 8] = [
    Part {
        name: "connections, and what waits in each",
        count: GUESTS,
        bytes: CONNECTION + MAX_HEAD + TLS_BUFFER,
    },
    Part {
        name: "upgrades, each with a connection to the API server",
        count: 2 * (MAX_UPGRADED + MAX_STARTING),
        bytes: CONNECTION,
    },
    Part {
        name: "requests under way",
        count: (ALL_OTHERS_SHORT + ALL_OTHERS_LONG) as usize,
        bytes: REQUEST,
    },
    Part {
        name: "what is held of requests and answers",
        count: 1,
        bytes: budget::MAX_WITH_OLDEST,
    },
    Part {
        name: "what the API server allowed and refused",
        count: 1,
        bytes: cache::VERDICTS_OF_OTHERS,
    },
    Part {
        name: "lists that were asked for, without their objects",
        count: 1,
        bytes: cache::QUESTIONS + cache::MEMBERS_OF_OTHERS + cache::UNFINISHED_OF_OTHERS,
    },
    Part {
        name: "discovery and schema",
        count: 1,
        bytes: cache::DOCUMENTS,
    },
    Part {
        name: "tokens, and what waits for the disk",
        count: 1,
        bytes: MAX_TOKENS * TOKEN + WRITE_AT,
    },
];

const fn sum() -> usize {
    let mut sum = 0;
    let mut part = 0;
    while part < PARTS.len() {
        sum += PARTS[part].count * PARTS[part].bytes;
        part += 1;
    }
    sum
}

const _: () = assert!(sum() <= MAX, "all limits together exceed the promise");

#[cfg(test)]
mod tests {
    use super::*;

    /// In MiB, with one digit.
    fn mebibytes(bytes: usize) -> String {
        let tenths = (bytes * 10).div_ceil(1 << 20);
        format!("{}.{}", tenths / 10, tenths % 10)
    }

    #[test]
    fn the_documents_have_each_part_and_the_sum() {
        let page = include_str!("../../docs/hub.md");
        let mut rows = Vec::new();
        for part in &PARTS {
            let most = mebibytes(part.count * part.bytes);
            rows.push(format!("| {} | {} | {most} |", part.name, part.count));
        }
        rows.push(format!("| all | | {} |", mebibytes(sum())));
        let rows = rows.join("\n");
        assert!(page.contains(&rows), "docs/hub.md has not\n{rows}");
    }
}
