//! Which streams are heavy, by how many bytes they have moved at each look. Pure.

use std::time::{Duration, Instant};

/// Bytes in each half of the last second that make a stream heavy: 256 kbit/s, which a share of a
/// slow or lossy tunnel has. A scrape of some hundred kilobytes is over sooner.
const HEAVY: u64 = 16 << 10;
/// Looks in half a second.
const HALF: usize = 2;

/// Looks at a tunnel stop while it has no bulk or one stream. Those before a longer pause than this say
/// nothing of a second.
const PAUSE: Duration = Duration::from_millis(600);

/// A stream's bytes at the last looks.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The newest first.
    bytes: [Option<u64>; 2 * HALF + 1],
    last: Option<Instant>,
}

impl Looks {
    /// Adds a look at a stream that has moved so many bytes, both ways. Returns whether it is heavy.
    pub(crate) fn add(&mut self, bytes: u64, now: Instant) -> bool {
        if let Some(last) = self.last
            && now.duration_since(last) > PAUSE
        {
            *self = Self::default();
        }
        self.last = Some(now);
        self.bytes.rotate_right(1);
        self.bytes[0] = Some(bytes);
        let [Some(now), Some(middle), Some(begin)] =
            [0, HALF, 2 * HALF].map(|look| self.bytes[look])
        else {
            return false;
        };
        now - middle >= HEAVY && middle - begin >= HEAVY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_heavy(looks: &[u64]) -> bool {
        is_heavy_at(looks, Duration::from_millis(250))
    }

    /// With looks that are `apart`.
    fn is_heavy_at(looks: &[u64], apart: Duration) -> bool {
        let mut all = Looks::default();
        let mut is_heavy = false;
        let mut now = Instant::now();
        for bytes in looks {
            is_heavy = all.add(*bytes, now);
            now += apart;
        }
        is_heavy
    }

    #[test]
    fn bulk_that_lasts_for_a_second_is_heavy_and_a_scrape_is_not() {
        let bulk = [0, 50_000, 100_000, 150_000, 200_000];
        assert!(is_heavy(&bulk));
        assert!(!is_heavy(&bulk[..4]), "too early to say");
        assert!(is_heavy(&[0, 0, 40_000, 40_000, 80_000]), "it stumbles");
        assert!(!is_heavy(&[0, 300_000, 300_000, 300_000, 300_000]));
        assert!(!is_heavy(&[0, 150_000, 300_000, 300_000, 300_000]));
        let thin: Vec<u64> = (0..100).map(|look| look * 4_000).collect();
        assert!(!is_heavy(&thin));
        assert!(is_heavy(
            &[&thin[..], &bulk.map(|bytes| bytes + 400_000)].concat()
        ));
        assert!(
            !is_heavy(&[&bulk[..], &[200_000; 4]].concat()),
            "it is over"
        );
    }

    #[test]
    fn looks_that_are_far_apart_make_no_stream_heavy() {
        let thin: Vec<u64> = (0..100).map(|look| look * 50_000).collect();
        assert!(!is_heavy_at(&thin, Duration::from_secs(30)));
    }
}
