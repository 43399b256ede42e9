//! Samples of time slices, and ratios to the floor: the minimal server that is the baseline.
//!
//! A ratio is the median of the ratios of adjacent slices, so that temporary load on the machine affects both.

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Completed requests; for the workload `full exchange`, completed pairs of requests.
    pub(crate) done: u64,
    /// Seconds from the first request to the last reply.
    pub(crate) seconds: f64,
    /// The server's CPU time in seconds.
    pub(crate) cpu_seconds: f64,
}

impl Sample {
    pub(crate) fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds
    }

    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.done as f64
    }

    /// The share of its core that the server used. If it is well below 1, the load generator was the bottleneck.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu_seconds / self.seconds
    }
}

/// The median and the interquartile range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// `None` if no value is finite.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let mut values: Vec<f64> = finite.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        Some(Self {
            low: values[last / 4],
            median: f64::midpoint(values[last / 2], values[last.div_ceil(2)]),
            high: values[last - last / 4],
        })
    }
}

pub(crate) fn median(samples: &[Sample], value: fn(&Sample) -> f64) -> Option<f64> {
    Spread::of(samples.iter().map(value)).map(|spread| spread.median)
}

/// The ratio of Refrain's values to the floor's.
pub(crate) fn ratio(
    refrain: &[Sample],
    floor: &[Sample],
    value: fn(&Sample) -> f64,
) -> Option<Spread> {
    let pairs = refrain.iter().zip(floor);
    Spread::of(pairs.map(|(refrain, floor)| value(refrain) / value(floor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_counted_per_request() {
        let sample = Sample {
            done: 50_000,
            seconds: 2.0,
            cpu_seconds: 1.5,
        };
        assert!((sample.per_second() - 25_000.0).abs() < 1e-9);
        assert!((sample.cpu_micros() - 30.0).abs() < 1e-9);
    }

    #[test]
    fn spread_ignores_values_that_are_not_finite() {
        let median =
            |values: &[f64]| Spread::of(values.iter().copied()).map(|spread| spread.median);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, f64::NAN, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[f64::INFINITY]), None);
        let spread = Spread::of([5.0, 1.0, 4.0, f64::NAN, 2.0, 3.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (2.0, 3.0, 4.0));
    }
}
