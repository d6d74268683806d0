//! Random numbers that a seed reproduces.

/// `SplitMix64`: small, and good enough for choices in tests.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Chooses one element.
    ///
    /// # Panics
    /// There are none.
    pub fn one_of<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        let at = self.below(several.len() as u64);
        &several[usize::try_from(at).expect("below a usize")]
    }

    /// A second, independent sequence.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.number())
    }

    /// A number from 0 to less than 1.
    pub fn share(&mut self) -> f64 {
        // The upper 53 bits: as many as a f64 has.
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers_and_reaches_everything() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!((0..10).all(|number| numbers(7).contains(&number)));
    }
}
