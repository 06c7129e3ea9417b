//! Collects latencies and computes percentiles.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::AnyError;

/// The latencies of one kind of request or period.
pub struct Latencies {
    request: &'static str,
    micros: Vec<u32>,
}

/// Percentiles of latencies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub request: &'static str,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Latencies {
    pub fn new(request: &'static str) -> Latencies {
        Latencies { request, micros: Vec::new() }
    }

    /// Measures a request. A failed request is not recorded.
    pub async fn time<T>(&mut self, request: impl Future<Output = Result<T, AnyError>>) -> Result<T, AnyError> {
        let started = Instant::now();
        let answer = request.await?;
        self.add(started.elapsed());
        Ok(answer)
    }

    pub fn add(&mut self, took: Duration) {
        self.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn merge(&mut self, other: Latencies) {
        self.micros.extend(other.micros);
    }

    /// `None` if there were no requests.
    pub fn percentiles(mut self) -> Option<Percentiles> {
        self.micros.sort_unstable();
        let last = self.micros.len().checked_sub(1)?;
        let ms = |percent| f64::from(self.micros[last * percent / 100]) / 1000.0;
        Some(Percentiles { request: self.request, p50_ms: ms(50), p95_ms: ms(95), p99_ms: ms(99), max_ms: ms(100) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_include_merged_latencies() {
        let (mut all, mut others) = (Latencies::new("publish"), Latencies::new("publish"));
        (1..=50).rev().for_each(|ms| all.add(Duration::from_millis(ms)));
        (51..=101).for_each(|ms| others.add(Duration::from_millis(ms)));
        all.merge(others);
        let expected = Percentiles { request: "publish", p50_ms: 51.0, p95_ms: 96.0, p99_ms: 100.0, max_ms: 101.0 };
        assert_eq!(all.percentiles(), Some(expected));
        assert_eq!(Latencies::new("claim").percentiles(), None);
    }
}
