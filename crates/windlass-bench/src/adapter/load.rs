//! The load: publishers, workers, and the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use super::payload::{Shape, payloads};
use super::tally::{STALL, Tally};
use super::{Caller, System};
use crate::AnyError;
use crate::compare::protocol::{Delays, Drain, Latency, Publish, Seconds, Steady, Took};

/// Publishers wait while so many are published and not yet finished.
const BACKLOG_MAX: u64 = 20_000;
/// How often a publisher that waits looks again.
const LOOK: Duration = Duration::from_millis(1);
/// Ticks of the schedule by which latency is measured: above that, each publishes several.
const TICKS_PER_SECOND: f64 = 1000.0;

pub async fn publish(system: &System, asked: &Publish) -> Result<Took, AnyError> {
    let mut callers = Vec::new();
    for _ in 0..asked.callers {
        callers.push(system.caller().await?);
    }
    let left = Arc::new(AtomicUsize::new(asked.events));
    let shape = Shape { tag_sets: asked.tag_sets, mixed: asked.mixed, groups: asked.groups };
    let (batch, bytes) = (asked.batch, asked.bytes);
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        let left = left.clone();
        tasks.spawn(async move {
            while let Some(count) = take(&left, batch) {
                caller.publish(payloads(count, bytes), shape).await?;
            }
            Ok::<_, AnyError>(())
        });
    }
    all(tasks).await?;
    Ok(Took { seconds: begun.elapsed().as_secs_f64() })
}

fn take(left: &AtomicUsize, batch: usize) -> Option<usize> {
    let less = |left: usize| (left > 0).then(|| left.saturating_sub(batch));
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    before.ok().map(|before| before.min(batch))
}

async fn all(mut tasks: JoinSet<Result<(), AnyError>>) -> Result<(), AnyError> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// The clock stops once the workers have: then what they handled is recorded.
pub async fn drain(system: &System, asked: Drain) -> Result<Took, AnyError> {
    let tally = Arc::new(Tally::new(asked.events * system.deliveries(), asked.fail_percent));
    let begun = Instant::now();
    let workers = system.start(tally.clone()).await?;
    tally.reached().await?;
    workers.stop().await?;
    Ok(Took { seconds: begun.elapsed().as_secs_f64() })
}

pub async fn latency(system: &System, asked: Latency) -> Result<Delays, AnyError> {
    let (tick, each) = schedule(asked.per_second as f64);
    let ticks = (asked.seconds as f64 / tick.as_secs_f64()).round() as usize;
    let tally = Arc::new(Tally::with_delays((ticks * each + 1) * system.deliveries()));
    let workers = system.start(tally.clone()).await?;
    // The first one, untimed as with every peer, shows that the workers are there.
    let mut first = system.caller().await?;
    first.publish(payloads(1, asked.bytes), Shape::default()).await?;
    let handled = async {
        while tally.done() < system.deliveries() as u64 {
            sleep(LOOK).await;
        }
    };
    timeout(STALL, handled).await.map_err(|_| format!("the first event was not handled within {STALL:?}"))?;
    tally.take_delays();
    let idle = Arc::new(std::sync::Mutex::new(vec![first]));
    let mut publishing = JoinSet::new();
    let mut due = interval(tick);
    for _ in 0..ticks {
        due.tick().await;
        for _ in 0..each {
            let caller = lock(&idle).pop();
            let mut caller = match caller {
                Some(caller) => caller,
                None => system.caller().await?,
            };
            let idle = idle.clone();
            publishing.spawn(async move {
                caller.publish(payloads(1, asked.bytes), Shape::default()).await?;
                lock(&idle).push(caller);
                Ok(())
            });
        }
    }
    all(publishing).await?;
    tally.reached().await?;
    workers.stop().await?;
    Ok(Delays { micros: tally.take_delays() })
}

fn lock(idle: &std::sync::Mutex<Vec<Caller>>) -> std::sync::MutexGuard<'_, Vec<Caller>> {
    idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// How far apart ticks are, and how many are published at each.
fn schedule(per_second: f64) -> (Duration, usize) {
    let each = (per_second / TICKS_PER_SECOND).ceil().max(1.0);
    (Duration::from_secs_f64(each / per_second.max(0.01)), each as usize)
}

pub async fn steady(system: &System, asked: Steady) -> Result<Seconds, AnyError> {
    let tally = Arc::new(Tally::new(usize::MAX, 0));
    let published = Arc::new(AtomicU64::new(0));
    let workers = system.start(tally.clone()).await?;
    let begun = Instant::now();
    let end = begun + Duration::from_secs(asked.seconds);
    let mut publishers = JoinSet::new();
    for _ in 0..asked.publishers {
        let caller = system.caller().await?;
        publishers.spawn(publish_steadily(caller, asked, end, published.clone(), tally.clone()));
    }
    let deliveries = system.deliveries() as u64;
    let mut seconds = Seconds { finished: Vec::new(), published: Vec::new() };
    let (mut finished_before, mut published_before) = (0, 0);
    for second in 1..=asked.seconds {
        sleep_until(begun + Duration::from_secs(second)).await;
        let (finished, published) = (tally.done() / deliveries, published.load(Ordering::Relaxed));
        seconds.finished.push(finished - finished_before);
        seconds.published.push(published - published_before);
        (finished_before, published_before) = (finished, published);
    }
    all(publishers).await?;
    workers.stop().await?;
    Ok(seconds)
}

async fn publish_steadily(
    mut caller: Caller,
    asked: Steady,
    end: Instant,
    published: Arc<AtomicU64>,
    tally: Arc<Tally>,
) -> Result<(), AnyError> {
    while Instant::now() < end {
        if published.load(Ordering::Relaxed).saturating_sub(tally.done()) >= BACKLOG_MAX {
            sleep(LOOK).await;
            continue;
        }
        caller.publish(payloads(asked.batch, asked.bytes), Shape::default()).await?;
        published.fetch_add(asked.batch as u64, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_publishes_what_is_left() {
        let left = AtomicUsize::new(250);
        let taken: Vec<_> = std::iter::from_fn(|| take(&left, 100)).collect();
        assert_eq!(taken, [100, 100, 50]);
    }

    #[test]
    fn ticks_are_no_closer_than_a_millisecond() {
        assert_eq!(schedule(50.0), (Duration::from_millis(20), 1));
        assert_eq!(schedule(1000.0), (Duration::from_millis(1), 1));
        assert_eq!(schedule(2500.0), (Duration::from_micros(1200), 3));
    }
}
