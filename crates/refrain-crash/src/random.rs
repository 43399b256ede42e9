//! Reproducible random numbers.

use std::time::Duration;

/// A source of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The random stream of a seed and a purpose.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut source = Self(seed);
        let mixed = source.next() ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// `true` with this probability in percent.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random time from 0.5 to 1.5 times `time`.
    pub(crate) fn about(&mut self, time: Duration) -> Duration {
        time.mul_f64(0.5 + self.below(1001) as f64 / 1000.0)
    }

    /// A random time below this many milliseconds, which must not be 0.
    pub(crate) fn millis_below(&mut self, millis: u64) -> Duration {
        Duration::from_micros(self.below(millis * 1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_repeats_itself_and_purposes_differ() {
        let draw = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            (0..20).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }
}
