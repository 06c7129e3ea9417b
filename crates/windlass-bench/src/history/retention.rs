//! Publish latency while history is deleted: partitions dropped, or rows deleted.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use windlass::{Partitions, Queue};

use crate::AnyError;
use crate::event::{PAID, order};
use crate::latency::{Latencies, Percentiles};
use crate::store::Backend;

/// Concurrent publishers, each publishing one event after another.
const PUBLISHERS: usize = 4;
/// Time measured before the deletion, for comparison.
const BASELINE_TIME: Duration = Duration::from_secs(10);

/// Time measured while rows are deleted one by one.
const ROW_DELETE_TIME: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize)]
pub struct RetentionCost {
    /// The unit of `count`: partitions or deliveries.
    pub what: &'static str,
    pub count: usize,
    pub took_ms: f64,
    /// Publish latency before and during the deletion.
    pub before: Percentiles,
    pub during: Percentiles,
}

pub async fn measure(queue: &Queue, backend: Backend) -> Result<RetentionCost, AnyError> {
    let before = measure_publishing(queue, async {
        tokio::time::sleep(BASELINE_TIME).await;
        Ok(())
    })
    .await?
    .1;
    let ((what, count, took), during) = measure_publishing(queue, async {
        let started = Instant::now();
        let (what, count) = match backend {
            Backend::Postgres => ("partitions", drop_months(queue).await?),
            Backend::Sqlite => ("deliveries", delete_rows(queue).await?),
        };
        Ok((what, count, started.elapsed()))
    })
    .await?;
    Ok(RetentionCost { what, count, took_ms: took.as_secs_f64() * 1e3, before, during })
}

async fn delete_rows(queue: &Queue) -> Result<usize, AnyError> {
    let (started, mut deleted) = (Instant::now(), 0);
    while started.elapsed() < ROW_DELETE_TIME {
        let done = queue.retain_once().await?;
        deleted += done.deliveries;
        if !done.more {
            break;
        }
    }
    Ok(deleted)
}

/// Drops partitions until none is left to drop.
async fn drop_months(queue: &Queue) -> Result<usize, AnyError> {
    let mut dropped = 0;
    loop {
        let Partitions { dropped: now, postponed, .. } = queue.partitions_once().await?;
        dropped += now;
        if now == 0 && postponed == 0 {
            return Ok(dropped);
        }
    }
}

/// Measures publish latency while `work` runs.
async fn measure_publishing<T>(
    queue: &Queue,
    work: impl Future<Output = Result<T, AnyError>>,
) -> Result<(T, Percentiles), AnyError> {
    let (done, mut publishers) = (watch::Sender::new(false), JoinSet::new());
    for _ in 0..PUBLISHERS {
        publishers.spawn(publish_until(queue.clone(), done.subscribe()));
    }
    let result = work.await?;
    done.send_replace(true);
    let mut all = Latencies::new("publish");
    while let Some(latencies) = publishers.join_next().await {
        all.merge(latencies??);
    }
    Ok((result, all.percentiles().ok_or("nothing was published")?))
}

async fn publish_until(queue: Queue, done: watch::Receiver<bool>) -> Result<Latencies, AnyError> {
    let (template, mut latencies) = (order(PAID, 12_345)?, Latencies::new("publish"));
    while !*done.borrow() {
        latencies.time(async { Ok(queue.publish(template.clone()).await?) }).await?;
    }
    Ok(latencies)
}
