//! Reproducible random numbers.

use fastrand::Rng;
use std::time::Duration;

/// The random stream of a seed and a purpose. Each purpose is a different number: four ASCII letters.
pub(crate) fn random_stream(seed: u64, purpose: u64) -> Rng {
    let mut seeds = Rng::with_seed(seed);
    Rng::with_seed(seeds.u64(..) ^ purpose)
}

/// `true` with this probability in percent.
pub(crate) fn percent(random: &mut Rng, percent: u64) -> bool {
    random.u64(..100) < percent
}

/// A random time from 0.5 to 1.5 times `time`.
pub(crate) fn about(random: &mut Rng, time: Duration) -> Duration {
    time.mul_f64(0.5 + random.f64())
}

/// A random time below this many milliseconds, which must not be 0.
pub(crate) fn millis_below(random: &mut Rng, millis: u64) -> Duration {
    Duration::from_micros(random.u64(..millis * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_repeats_itself_and_purposes_differ() {
        let draw = |seed, purpose| {
            let mut random = random_stream(seed, purpose);
            (0..20).map(|_| random.u16(..1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }
}
