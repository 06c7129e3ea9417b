//! Medians, percentiles and means of windows.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// `None` for no values.
pub fn summary(mut values: Vec<f64>) -> Option<Summary> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let upper = values.len() / 2;
    let lower = (values.len() - 1) / 2;
    Some(Summary { median: (values[lower] + values[upper]) / 2.0, min, max })
}

/// The smallest value that `percent` of the values do not exceed; 0 for no values.
pub fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// The mean of the values from `from` up to `to`, cut to the existing values.
pub fn mean(values: &[u64], from: usize, to: usize) -> f64 {
    let window = &values[from.min(values.len())..to.min(values.len())];
    window.iter().sum::<u64>() as f64 / window.len().max(1) as f64
}

/// The median of the values from `from` up to `to`, cut to the existing values.
pub fn window_median(values: &[u64], from: usize, to: usize) -> f64 {
    let window = &values[from.min(values.len())..to.min(values.len())];
    summary(window.iter().map(|value| *value as f64).collect()).map_or(0.0, |summary| summary.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_count_is_the_mean_of_two() {
        assert_eq!(summary(vec![3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(summary(vec![4.0, 1.0]).map(|summary| summary.median), Some(2.5));
        assert_eq!(summary(vec![]), None);
    }

    #[test]
    fn percentiles_are_measured_values() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!([50, 95, 99, 100].map(|percent| percentile(&values, percent)), [100, 190, 198, 200]);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[], 50), 0);
    }

    #[test]
    fn windows_are_cut_to_the_existing_values() {
        assert_eq!(mean(&[1, 2, 3, 4], 1, 3), 2.5);
        assert_eq!(mean(&[1, 2, 3, 4], 2, 9), 3.5);
        assert_eq!(mean(&[1], 5, 9), 0.0);
        assert_eq!(window_median(&[1, 2, 3, 40], 1, 9), 3.0);
        assert_eq!(window_median(&[1], 5, 9), 0.0);
    }
}
