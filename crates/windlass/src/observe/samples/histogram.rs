//! A histogram of durations. Each bucket begins √2 times later than the one before.
//!
//! The bounds are fixed, so histograms of all processes, types and times can be added.

/// One bucket below a millisecond, 59 up to more than a week, and one for longer durations.
const BUCKETS: usize = 61;

/// The count of each bucket, up to the last one that is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram(Vec<u64>);

/// The lower bound of a bucket, in milliseconds.
fn lower_bound_ms(bucket: usize) -> f64 {
    if bucket == 0 { 0.0 } else { ((bucket as f64 - 1.0) / 2.0).exp2() }
}

/// The bucket of a duration in microseconds.
fn bucket(us: u64) -> usize {
    if us < 1_000 {
        return 0;
    }
    let halves = 2.0 * (us as f64 / 1_000.0).log2();
    // Never negative here, and never large.
    (halves as usize + 1).min(BUCKETS - 1)
}

impl Histogram {
    pub fn from_counts(counts: Vec<u64>) -> Histogram {
        Histogram(counts)
    }

    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    pub fn record(&mut self, us: u64) {
        let bucket = bucket(us);
        if self.0.len() <= bucket {
            self.0.resize(bucket + 1, 0);
        }
        self.0[bucket] += 1;
    }

    pub fn add(&mut self, other: &Histogram) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The quantile of `share`, from 0 to 1, in milliseconds. The result is in the right bucket, so at most √2 times
    /// too large or too small; below a millisecond, less than one millisecond off.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.total() as f64).max(1.0);
        let mut before = 0.0;
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let within = (rank - before) / *count as f64;
            if within <= 1.0 {
                let (from, to) = (lower_bound_ms(bucket), lower_bound_ms(bucket + 1));
                return from + (to - from) * within;
            }
            before += *count as f64;
        }
        // Rounding may leave the last rank slightly above the total.
        lower_bound_ms(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const DAY: u64 = 24 * 3600 * 1000 * MS;

    #[test]
    fn duration_is_within_the_bounds_of_its_bucket() {
        let table = [(0, 0), (999, 0), (MS, 1), (1_414, 1), (1_415, 2), (2 * MS, 3), (1_000 * MS, 20)];
        for (us, expected) in table {
            assert_eq!(bucket(us), expected, "{us} µs");
        }
        for us in [1, MS, 7 * MS, 12_345, 60_000 * MS, DAY, 7 * DAY] {
            let (ms, bucket) = (us as f64 / 1_000.0, bucket(us));
            assert!(bucket < BUCKETS - 1, "{us} µs has a bucket with an end");
            assert!(lower_bound_ms(bucket) <= ms && ms < lower_bound_ms(bucket + 1), "{us} µs");
        }
        assert_eq!([bucket(10 * DAY), bucket(u64::MAX)], [BUCKETS - 1; 2]);
    }

    /// The exact quantile.
    fn exact(sorted: &[u64], share: f64) -> f64 {
        let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted[rank - 1] as f64 / 1_000.0
    }

    #[test]
    fn quantiles_are_at_most_a_bucket_off() {
        let mut random = fastrand::Rng::with_seed(7);
        let spread: Vec<u64> = (0..10_000).map(|_| (random.f64() * 34.0).exp2() as u64).collect();
        let table: [(&str, Vec<u64>); 7] = [
            ("one", vec![5 * MS]),
            ("two far apart", vec![2 * MS, 3_600_000 * MS]),
            ("all equal", vec![80 * MS; 999]),
            ("uniform", (1..=1_000).map(|n| n * MS).collect()),
            ("log-uniform", spread),
            ("a long tail", (0..1_000).map(|n| if n < 990 { 3 * MS } else { 9_000 * MS }).collect()),
            ("below a millisecond", (0..1_000).collect()),
        ];
        for (name, mut durations) in table {
            let mut histogram = Histogram::default();
            durations.iter().for_each(|us| histogram.record(*us));
            durations.sort_unstable();
            assert_eq!(histogram.total(), durations.len() as u64);
            for share in [0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0] {
                let (found, exact) = (histogram.quantile(share), exact(&durations, share));
                let ratio = 1.0 + 1e-9 + std::f64::consts::SQRT_2 - 1.0;
                let near = found <= exact * ratio && exact <= found * ratio;
                assert!(near || (found <= 1.0 && exact <= 1.0), "{name}: {share} is {exact} ms, not {found}");
            }
        }
    }

    #[test]
    fn histograms_add_up() {
        let of = |durations: &[u64]| {
            let mut histogram = Histogram::default();
            durations.iter().for_each(|us| histogram.record(*us));
            histogram
        };
        let mut sum = of(&[1, 5 * MS]);
        sum.add(&of(&[80_000 * MS, 5 * MS]));
        sum.add(&Histogram::default());
        assert_eq!(sum, of(&[1, 5 * MS, 5 * MS, 80_000 * MS]));
        assert_eq!(Histogram::from_counts(sum.counts().to_vec()), sum);
    }

    #[test]
    fn last_bucket_has_no_upper_bound() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert!(histogram.quantile(0.5) >= lower_bound_ms(BUCKETS - 1));
        assert_eq!(Histogram::default().total(), 0);
    }
}
