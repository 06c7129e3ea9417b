//! How long requests took.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::AnyError;

/// The times of one kind of request, or of one span.
pub struct Latencies {
    request: &'static str,
    micros: Vec<u32>,
}

/// What half and what nearly all of the requests stayed within.
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

    /// What fails has no latency.
    pub async fn time<T>(&mut self, request: impl Future<Output = Result<T, AnyError>>) -> Result<T, AnyError> {
        let begun = Instant::now();
        let answer = request.await?;
        self.add(begun.elapsed());
        Ok(answer)
    }

    pub fn add(&mut self, took: Duration) {
        self.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn join(&mut self, other: Latencies) {
        self.micros.extend(other.micros);
    }

    /// None where there were no requests.
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
    fn percentiles_are_of_all_that_were_joined() {
        let (mut all, mut others) = (Latencies::new("publish"), Latencies::new("publish"));
        (1..=50).rev().for_each(|ms| all.add(Duration::from_millis(ms)));
        (51..=101).for_each(|ms| others.add(Duration::from_millis(ms)));
        all.join(others);
        let expected = Percentiles { request: "publish", p50_ms: 51.0, p95_ms: 96.0, p99_ms: 100.0, max_ms: 101.0 };
        assert_eq!(all.percentiles(), Some(expected));
        assert_eq!(Latencies::new("claim").percentiles(), None);
    }
}
