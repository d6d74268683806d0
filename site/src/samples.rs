//! The last values of one thing that is measured again and again.

use std::collections::VecDeque;

/// How many are kept.
pub const MAX_SAMPLES: usize = 48;

/// Values, the oldest first. `None`: there was none at that time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(VecDeque<Option<f32>>);

impl Samples {
    /// Adds the newest value. The oldest one goes if there are too many.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what is drawn needs no more than a few digits"
    )]
    pub fn push(&mut self, value: Option<f64>) {
        if self.0.len() == MAX_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(value.map(|value| value as f32));
    }

    /// All of them.
    pub fn values(&self) -> impl ExactSizeIterator<Item = Option<f32>> {
        self.0.iter().copied()
    }

    /// The largest of them; 0 without any.
    pub fn most(&self) -> f32 {
        let mut most = 0.0;
        for value in self.0.iter().flatten() {
            most = value.max(most);
        }
        most
    }

    /// The newest.
    pub fn newest(&self) -> Option<f32> {
        self.0.back().copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_gaps_stay() {
        let mut samples = Samples::default();
        for index in 0..MAX_SAMPLES + 2 {
            samples.push((index % 2 == 0).then_some(2.0));
        }
        assert_eq!(samples.values().len(), MAX_SAMPLES);
        assert_eq!(samples.values().flatten().count(), MAX_SAMPLES / 2);
        assert_eq!((samples.most(), samples.newest()), (2.0, None));
    }
}
