//! The workloads, the same for every peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::board::Board;
use crate::peer::Peer;
use crate::protocol::{Payload, Result, Unsupported};

/// Publishers of a steady load wait while so many are on their way.
const BACKLOG_MAX: u64 = 20_000;
/// At higher rates several are published at a tick.
const TICKS_PER_SECOND_MAX: u64 = 1000;

pub struct Bench<P> {
    pub peer: Arc<P>,
    pub board: Arc<Board>,
    /// The number of the next event; none is used twice.
    next: Arc<AtomicU64>,
}

impl<P> Clone for Bench<P> {
    fn clone(&self) -> Self {
        Self { peer: self.peer.clone(), board: self.board.clone(), next: self.next.clone() }
    }
}

impl<P: Peer> Bench<P> {
    pub fn new(peer: P, board: Arc<Board>) -> Self {
        Self { peer: Arc::new(peer), board, next: Arc::default() }
    }

    async fn publish_some(&self, count: u64, bytes: usize) -> Result<()> {
        let first = self.next.fetch_add(count, Relaxed);
        let at = self.board.micros();
        self.peer.publish((first..first + count).map(|n| Payload::new(at, n, bytes)).collect()).await
    }

    pub async fn publish(&self, events: u64, callers: u64, batch: u64, bytes: usize) -> Result<Value> {
        let taken = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        for _ in 0..callers {
            let (bench, taken) = (self.clone(), taken.clone());
            tasks.spawn(async move {
                loop {
                    let from = taken.fetch_add(batch, Relaxed);
                    if from >= events {
                        return Ok(());
                    }
                    bench.publish_some(batch.min(events - from), bytes).await?;
                }
            });
        }
        join(tasks).await?;
        Ok(json!({ "seconds": start.elapsed().as_secs_f64() }))
    }

    pub async fn drain(&self, events: u64, fail_percent: u64) -> Result<Value> {
        if let (Some(why), 1..) = (P::NO_RETRIES, fail_percent) {
            return Err(Unsupported(why).into());
        }
        let waiting = self.peer.unfinished().await?;
        if waiting.is_some_and(|waiting| waiting < events) {
            return Err(format!("{events} are to be drained, and {waiting:?} wait").into());
        }
        self.board.fail_once(fail_percent);
        let goal = self.board.finished() + events;
        let start = Instant::now();
        let workers = self.peer.start().await?;
        self.board.wait_until(goal).await?;
        let mut end = Instant::now();
        if let Some(waiting) = waiting {
            // What is stored has the last word; the question itself is not charged to the peer.
            while self.peer.unfinished().await?.is_some_and(|left| left + events > waiting) {
                self.board.check()?;
                sleep(Duration::from_millis(2)).await;
                end = Instant::now();
            }
        }
        workers.stop().await?;
        self.board.fail_once(0);
        Ok(json!({ "seconds": (end - start).as_secs_f64() }))
    }

    pub async fn latency(&self, per_second: u64, seconds: u64, bytes: usize) -> Result<Value> {
        let workers = self.peer.start().await?;
        // The first one, untimed, shows that the workers are there.
        let warm = self.board.finished() + 1;
        self.publish_some(1, bytes).await?;
        self.board.wait_until(warm).await?;
        let total = per_second * seconds;
        self.board.time_from(self.next.load(Relaxed));
        self.publish_on_schedule(per_second, total, bytes).await?;
        let micros = self.board.wait_for_delays(total as usize).await?;
        self.board.time_from(u64::MAX);
        workers.stop().await?;
        Ok(json!({ "micros": micros }))
    }

    /// Nothing is awaited in between, so that a slow publish delays no other one.
    async fn publish_on_schedule(&self, per_second: u64, total: u64, bytes: usize) -> Result<()> {
        let ticks_per_second = per_second.clamp(1, TICKS_PER_SECOND_MAX);
        let mut ticks = interval(Duration::from_secs(1) / ticks_per_second as u32);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut tasks = JoinSet::new();
        let (mut tick, mut published) = (0, 0);
        while published < total {
            ticks.tick().await;
            tick += 1;
            let due = total.min(tick * per_second / ticks_per_second);
            for _ in published..due {
                let bench = self.clone();
                tasks.spawn(async move { bench.publish_some(1, bytes).await });
            }
            published = due;
        }
        join(tasks).await
    }

    pub async fn steady(&self, seconds: u64, batch: u64, publishers: u64, bytes: usize) -> Result<Value> {
        let published = Arc::new(AtomicU64::new(0));
        let finished_before = self.board.finished();
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        let workers = self.peer.start().await?;
        let mut tasks = JoinSet::new();
        for _ in 0..publishers {
            let (bench, published) = (self.clone(), published.clone());
            tasks.spawn(async move {
                let on_their_way = || published.load(Relaxed).saturating_sub(bench.board.finished() - finished_before);
                while Instant::now() < end {
                    if on_their_way() >= BACKLOG_MAX {
                        sleep(Duration::from_millis(1)).await;
                    } else {
                        bench.publish_some(batch, bytes).await?;
                        published.fetch_add(batch, Relaxed);
                    }
                }
                Ok(())
            });
        }
        let mut rows = vec![(0, 0)];
        for second in 1..=seconds {
            sleep_until(start + Duration::from_secs(second)).await;
            rows.push((self.board.check()? - finished_before, published.load(Relaxed)));
        }
        join(tasks).await?;
        workers.stop().await?;
        let (finished, published): (Vec<u64>, Vec<u64>) =
            rows.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1)).unzip();
        Ok(json!({ "finished": finished, "published": published }))
    }
}

async fn join(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
