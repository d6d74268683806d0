//! One direction of a link of packets: delay and its changes, rate with a queue that drops at its
//! tail, loss, and packets that others overtake. It has no clock and no sockets: the caller tells the time, and gets the time of arrival.

mod loss;

use std::time::Duration;

use culvert_lab::random::Random;

pub use loss::{Loss, Losses};

/// How much later a packet arrives that others overtake: three to twenty of them at the rates of
/// links.
const LATE: Duration = Duration::from_millis(5);

/// The properties of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Direction {
    /// From the end of sending a packet to its arrival.
    pub delay: Duration,
    /// Bits per second, above zero.
    pub rate: u64,
    /// Bytes that may wait, with the packet that is being sent.
    pub queue: u64,
    /// What is lost of the packets that were sent.
    pub loss: Loss,
    /// Each packet takes up to so much longer, as over radio; none overtakes another for it.
    pub jitter: Duration,
    /// The share of packets that others overtake, from 0 to 1.
    pub overtaken: f64,
}

/// A direction in use.
#[derive(Debug)]
pub struct Line {
    direction: Direction,
    losses: Losses,
    random: Random,
    /// When the last packet arrives that others have not overtaken.
    last_arrival: Duration,
    /// When the last packet in the queue has been sent.
    free_at: Duration,
}

impl Line {
    /// An empty line. The seed chooses what is lost and late.
    pub fn new(direction: Direction, seed: u64) -> Self {
        Self {
            direction,
            losses: Losses::new(direction.loss, seed),
            random: Random::new(seed.wrapping_add(1)),
            last_arrival: Duration::ZERO,
            free_at: Duration::ZERO,
        }
    }

    /// When a packet of that many bytes arrives that comes `now`, counted as `now` is; `None` if the
    /// queue has no capacity for it, or it is lost on the way.
    pub fn enter(&mut self, now: Duration, bytes: u64) -> Option<Duration> {
        let sending = self.free_at.saturating_sub(now);
        if self.bytes_in(sending) + bytes > self.direction.queue {
            return None;
        }
        self.free_at = now + sending + self.time_of(bytes);
        if self.losses.lose() {
            None
        } else {
            Some(self.arrival())
        }
    }

    /// When a packet arrives that has just been sent.
    fn arrival(&mut self) -> Duration {
        let Direction {
            delay,
            jitter,
            overtaken,
            ..
        } = self.direction;
        let mut arrival = self.free_at + delay;
        if !jitter.is_zero() {
            arrival += jitter.mul_f64(self.random.share());
        }
        arrival = arrival.max(self.last_arrival);
        if overtaken > 0.0 && self.random.share() < overtaken {
            return arrival + LATE;
        }
        self.last_arrival = arrival;
        arrival
    }

    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 8 * 1_000_000_000 / self.direction.rate)
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        let bits = time.as_nanos() * u128::from(self.direction.rate) / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte takes a microsecond.
    const DIRECTION: Direction = Direction {
        delay: Duration::from_millis(10),
        rate: 8_000_000,
        queue: 3_000,
        loss: Loss::None,
        jitter: Duration::ZERO,
        overtaken: 0.0,
    };

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn a_packet_arrives_when_rate_and_delay_say() {
        let mut line = Line::new(DIRECTION, 1);
        assert_eq!(line.enter(micros(5), 1_000), Some(micros(11_005)));
        assert_eq!(
            line.enter(micros(105), 500),
            Some(micros(11_505)),
            "after the first one"
        );
        assert_eq!(
            line.enter(micros(50_000), 500),
            Some(micros(60_500)),
            "the line is idle again"
        );
    }

    #[test]
    fn the_queue_drops_what_exceeds_its_bytes_and_has_capacity_again_once_they_are_sent() {
        let mut line = Line::new(DIRECTION, 1);
        assert!((0..3).all(|_| line.enter(micros(0), 1_000).is_some()));
        assert_eq!(line.enter(micros(0), 1), None);
        assert_eq!(line.enter(micros(999), 1_000), None);
        assert_eq!(line.enter(micros(1_000), 1_000), Some(micros(14_000)));
    }

    #[test]
    fn a_dropped_packet_does_not_delay_those_behind_it() {
        let mut line = Line::new(DIRECTION, 1);
        assert!((0..2).all(|_| line.enter(micros(0), 1_000).is_some()));
        assert_eq!(line.enter(micros(0), 1_500), None);
        assert_eq!(line.enter(micros(0), 1_000), Some(micros(13_000)));
    }

    #[test]
    fn a_lost_packet_takes_its_time_on_the_line() {
        let loss = Loss::Random { share: 1.0 };
        let mut line = Line::new(Direction { loss, ..DIRECTION }, 1);
        assert!((0..3).all(|_| line.enter(micros(0), 1_000).is_none()));
        assert_eq!(line.free_at, micros(3_000));
    }

    #[test]
    fn jitter_delays_packets_and_none_overtakes_another() {
        let jitter = Duration::from_millis(20);
        let mut line = Line::new(
            Direction {
                jitter,
                ..DIRECTION
            },
            1,
        );
        let mut before = Duration::ZERO;
        let mut longest = Duration::ZERO;
        for number in 0..1_000 {
            let sent = micros(100_000 * number);
            let arrival = line.enter(sent, 1_000).unwrap();
            assert!(arrival >= before, "{arrival:?} after {before:?}");
            longest = longest.max(arrival - sent);
            before = arrival;
        }
        let least = micros(11_000);
        assert!(longest > least + jitter / 2 && longest < least + jitter);
    }

    #[test]
    fn the_share_of_packets_that_others_overtake_is_as_set() {
        let overtaken = 0.1;
        let mut line = Line::new(
            Direction {
                overtaken,
                ..DIRECTION
            },
            1,
        );
        let mut arrivals = Vec::new();
        for number in 0..10_000 {
            arrivals.push(line.enter(micros(1_000 * number), 1_000).unwrap());
        }
        let late = arrivals.windows(2).filter(|pair| pair[0] > pair[1]);
        assert!((900..1_100).contains(&late.count()));
    }
}
