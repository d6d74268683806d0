//! Which packets are lost, by a seed.

use culvert_lab::random::Random;

/// How packets are lost. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// None is.
    None,
    /// Each packet with the same probability, whatever happened to the others (Bernoulli).
    Random {
        /// The share of all packets that is lost.
        share: f64,
    },
    /// In bursts (Gilbert-Elliott): the line is good, and loses nothing, or bad.
    Bursts {
        /// The probability to become bad with the next packet.
        worsens: f64,
        /// The probability to become good with the next packet.
        recovers: f64,
        /// The share of packets that is lost while it is bad.
        share: f64,
    },
}

/// The losses of one line.
#[derive(Debug)]
pub struct Losses {
    loss: Loss,
    random: Random,
    is_bad: bool,
}

impl Losses {
    /// The same seed loses the same packets.
    pub fn new(loss: Loss, seed: u64) -> Self {
        Self {
            loss,
            random: Random::new(seed),
            is_bad: false,
        }
    }

    /// Whether the next packet is lost.
    pub fn lose(&mut self) -> bool {
        match self.loss {
            Loss::None => false,
            Loss::Random { share } => self.happens(share),
            Loss::Bursts {
                worsens,
                recovers,
                share,
            } => {
                let changes = if self.is_bad { recovers } else { worsens };
                self.is_bad ^= self.happens(changes);
                self.is_bad && self.happens(share)
            }
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        self.random.share() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: Loss = Loss::Random { share: 0.01 };
    const BURSTS: Loss = Loss::Bursts {
        worsens: 0.002,
        recovers: 0.1,
        share: 0.5,
    };
    const PACKETS: usize = 1_000_000;

    fn lost(loss: Loss, seed: u64) -> Vec<usize> {
        let mut losses = Losses::new(loss, seed);
        (0..PACKETS).filter(|_| losses.lose()).collect()
    }

    #[test]
    fn a_seed_loses_the_same_packets_and_another_one_others() {
        for loss in [RANDOM, BURSTS] {
            assert_eq!(lost(loss, 7), lost(loss, 7));
            assert_ne!(lost(loss, 7), lost(loss, 8));
        }
    }

    #[test]
    fn the_mean_loss_is_what_the_probabilities_say() {
        let share = |loss| lost(loss, 7).len() as f64 / PACKETS as f64;
        assert_eq!(share(Loss::None), 0.0);
        assert!((share(RANDOM) - 0.01).abs() < 0.0005);
        // It is bad for worsens / (worsens + recovers) of the time.
        assert!((share(BURSTS) - 0.5 * 0.002 / 0.102).abs() < 0.0005);
    }

    #[test]
    fn bursts_lose_packets_that_follow_each_other() {
        let followed = |loss| {
            let lost = lost(loss, 7);
            let pairs = lost.windows(2).filter(|pair| pair[0] + 1 == pair[1]);
            pairs.count() as f64 / lost.len() as f64
        };
        assert!(followed(RANDOM) < 0.02);
        // The line stays bad in 0.9 of the cases, and loses half.
        assert!((followed(BURSTS) - 0.45).abs() < 0.03);
    }
}
