//! How long publishers wait while history is forgotten: months dropped, or rows deleted.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use windlass::{Partitions, Queue};

use crate::AnyError;
use crate::latency::{Latencies, Percentiles};
use crate::order::{PAID, order};
use crate::store::Backend;

/// So many publish at once, one event after another.
const PUBLISHERS: usize = 4;
/// How long they are watched before, to compare with.
const BEFORE: Duration = Duration::from_secs(10);

/// Where that goes row by row, it is watched for so long.
const ROW_WISE: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize)]
pub struct Forgotten {
    /// What is counted: partitions, or deliveries.
    pub what: &'static str,
    pub count: usize,
    pub took_ms: f64,
    /// What publishing took before, and meanwhile.
    pub before: Percentiles,
    pub during: Percentiles,
}

pub async fn measure(queue: &Queue, backend: Backend) -> Result<Forgotten, AnyError> {
    let before = publishing(queue, async {
        tokio::time::sleep(BEFORE).await;
        Ok(())
    })
    .await?
    .1;
    let ((what, count, took), during) = publishing(queue, async {
        let begun = Instant::now();
        let (what, count) = match backend {
            Backend::Postgres => ("partitions", drop_months(queue).await?),
            Backend::Sqlite => ("deliveries", delete_rows(queue).await?),
        };
        Ok((what, count, begun.elapsed()))
    })
    .await?;
    Ok(Forgotten { what, count, took_ms: took.as_secs_f64() * 1e3, before, during })
}

async fn delete_rows(queue: &Queue) -> Result<usize, AnyError> {
    let (begun, mut deleted) = (Instant::now(), 0);
    while begun.elapsed() < ROW_WISE {
        let done = queue.retain_once().await?;
        deleted += done.deliveries;
        if !done.more {
            break;
        }
    }
    Ok(deleted)
}

/// Until there is nothing more to drop.
async fn drop_months(queue: &Queue) -> Result<usize, AnyError> {
    let mut dropped = 0;
    loop {
        let Partitions { dropped: now, put_off, .. } = queue.partitions_once().await?;
        dropped += now;
        if now == 0 && put_off == 0 {
            return Ok(dropped);
        }
    }
}

/// What publishing takes while something is done.
async fn publishing<T>(
    queue: &Queue,
    work: impl Future<Output = Result<T, AnyError>>,
) -> Result<(T, Percentiles), AnyError> {
    let (done, mut publishers) = (watch::Sender::new(false), JoinSet::new());
    for _ in 0..PUBLISHERS {
        publishers.spawn(publish_until(queue.clone(), done.subscribe()));
    }
    let worked = work.await?;
    done.send_replace(true);
    let mut all = Latencies::new("publish");
    while let Some(latencies) = publishers.join_next().await {
        all.join(latencies??);
    }
    Ok((worked, all.percentiles().ok_or("nothing was published")?))
}

async fn publish_until(queue: Queue, done: watch::Receiver<bool>) -> Result<Latencies, AnyError> {
    let (template, mut latencies) = (order(PAID, 12_345)?, Latencies::new("publish"));
    while !*done.borrow() {
        latencies.time(async { Ok(queue.publish(template.clone()).await?) }).await?;
    }
    Ok(latencies)
}
