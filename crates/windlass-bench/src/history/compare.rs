//! Measures publish, claim and finish alternately on two databases.

use std::time::Instant;

use serde::Serialize;
use windlass::{ClaimRequest, LeasedEvent, Queue, Report};

use crate::AnyError;
use crate::event::{PAID, order};
use crate::statistics::summary;

/// Batch size and number of events per measurement.
const SIZES: [(usize, usize); 2] = [(1, 1_000), (100, 20_000)];

/// The time per event on each database.
#[derive(Debug, Serialize)]
pub struct Cost {
    pub work: &'static str,
    pub batch: usize,
    pub empty_us: f64,
    pub full_us: f64,
    pub ratio: f64,
}

pub async fn compare(empty: &Queue, full: &Queue, rounds: u16) -> Result<Vec<Cost>, AnyError> {
    let mut costs = Vec::new();
    for (batch, events) in SIZES {
        let mut times: [[Vec<f64>; 3]; 2] = Default::default();
        // The first round warms up.
        for round in 0..=rounds {
            for (at, queue) in [empty, full].into_iter().enumerate() {
                let measured = measure(queue, batch, events).await?;
                if round > 0 {
                    times[at].iter_mut().zip(measured).for_each(|(times, time)| times.push(time));
                }
            }
        }
        for (at, work) in ["publish", "claim", "finish"].into_iter().enumerate() {
            let medians = times.each_ref().map(|times| summary(times[at].clone()).map(|summary| summary.median));
            let [Some(empty_us), Some(full_us)] = medians else { continue };
            costs.push(Cost { work, batch, empty_us, full_us, ratio: full_us / empty_us });
        }
    }
    Ok(costs)
}

/// Microseconds per event for publish, claim and finish.
async fn measure(queue: &Queue, batch: usize, events: usize) -> Result<[f64; 3], AnyError> {
    let template = order(PAID, 12_345)?;
    let each = |started: Instant| started.elapsed().as_secs_f64() * 1e6 / events as f64;
    let started = Instant::now();
    for _ in 0..events / batch {
        queue.publish_all(vec![template.clone(); batch]).await?;
    }
    let published = each(started);
    let (started, mut claims) = (Instant::now(), Vec::new());
    for _ in 0..events / batch {
        claims.push(queue.claim(ClaimRequest::new("bench").max(batch)).await?);
    }
    let claimed = each(started);
    assert_eq!(claims.iter().map(Vec::len).sum::<usize>(), events, "all that was published");
    let started = Instant::now();
    for claim in claims {
        let reports = claim.iter().map(|delivery| (LeasedEvent::from(delivery), Report::done())).collect();
        for finished in queue.finish_all(reports).await? {
            assert!(!finished?.is_lost(), "a lease was lost");
        }
    }
    Ok([published, claimed, each(started)])
}
