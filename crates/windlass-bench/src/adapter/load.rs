//! The load: publishers, workers and timing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use super::payload::{EventShape, payloads};
use super::tally::{STALL_TIMEOUT, Tally};
use super::{Caller, System};
use crate::AnyError;
use crate::compare::protocol::{Delays, Drain, Elapsed, Latency, PerSecondCounts, Publish, Steady};

/// Publishers wait while this many events are published and not finished.
const BACKLOG_MAX: u64 = 20_000;
/// How often a waiting publisher checks again.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Most ticks per second of the latency schedule; for higher rates each tick publishes several events.
const TICKS_PER_SECOND: f64 = 1000.0;

pub async fn publish(system: &System, params: &Publish) -> Result<Elapsed, AnyError> {
    let mut callers = Vec::new();
    for _ in 0..params.callers {
        callers.push(system.caller().await?);
    }
    let left = Arc::new(AtomicUsize::new(params.events));
    let shape = EventShape { tag_sets: params.tag_sets, mixed: params.mixed, groups: params.groups };
    let (batch, bytes) = (params.batch, params.bytes);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for mut caller in callers {
        let left = left.clone();
        tasks.spawn(async move {
            while let Some(count) = take_batch(&left, batch) {
                caller.publish(payloads(count, bytes), shape).await?;
            }
            Ok::<_, AnyError>(())
        });
    }
    join_all(tasks).await?;
    Ok(Elapsed { seconds: started.elapsed().as_secs_f64() })
}

fn take_batch(left: &AtomicUsize, batch: usize) -> Option<usize> {
    let less = |left: usize| (left > 0).then(|| left.saturating_sub(batch));
    let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    before.ok().map(|before| before.min(batch))
}

async fn join_all(mut tasks: JoinSet<Result<(), AnyError>>) -> Result<(), AnyError> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// The time ends when the workers have stopped: then all handled events are recorded.
pub async fn drain(system: &System, params: Drain) -> Result<Elapsed, AnyError> {
    let tally = Arc::new(Tally::new(params.events * system.deliveries(), params.fail_percent));
    let started = Instant::now();
    let workers = system.start(tally.clone()).await?;
    tally.reached().await?;
    workers.stop().await?;
    Ok(Elapsed { seconds: started.elapsed().as_secs_f64() })
}

pub async fn latency(system: &System, params: Latency) -> Result<Delays, AnyError> {
    let (tick, each) = schedule(params.per_second as f64);
    let ticks = (params.seconds as f64 / tick.as_secs_f64()).round() as usize;
    let tally = Arc::new(Tally::with_delays((ticks * each + 1) * system.deliveries()));
    let workers = system.start(tally.clone()).await?;
    // The first event is not timed, as for every peer; it ensures that the workers run.
    let mut first = system.caller().await?;
    first.publish(payloads(1, params.bytes), EventShape::default()).await?;
    let handled = async {
        while tally.done() < system.deliveries() as u64 {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(STALL_TIMEOUT, handled)
        .await
        .map_err(|_| format!("the first event was not handled within {STALL_TIMEOUT:?}"))?;
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
                caller.publish(payloads(1, params.bytes), EventShape::default()).await?;
                lock(&idle).push(caller);
                Ok(())
            });
        }
    }
    join_all(publishing).await?;
    tally.reached().await?;
    workers.stop().await?;
    Ok(Delays { micros: tally.take_delays() })
}

fn lock(idle: &std::sync::Mutex<Vec<Caller>>) -> std::sync::MutexGuard<'_, Vec<Caller>> {
    idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The interval between ticks, and the number of events per tick.
fn schedule(per_second: f64) -> (Duration, usize) {
    let each = (per_second / TICKS_PER_SECOND).ceil().max(1.0);
    (Duration::from_secs_f64(each / per_second.max(0.01)), each as usize)
}

pub async fn steady(system: &System, params: Steady) -> Result<PerSecondCounts, AnyError> {
    let tally = Arc::new(Tally::new(usize::MAX, 0));
    let published = Arc::new(AtomicU64::new(0));
    let workers = system.start(tally.clone()).await?;
    let started = Instant::now();
    let end = started + Duration::from_secs(params.seconds);
    let mut publishers = JoinSet::new();
    for _ in 0..params.publishers {
        let caller = system.caller().await?;
        publishers.spawn(publish_steadily(caller, params, end, published.clone(), tally.clone()));
    }
    let deliveries = system.deliveries() as u64;
    let mut seconds = PerSecondCounts { finished: Vec::new(), published: Vec::new() };
    let (mut finished_before, mut published_before) = (0, 0);
    for second in 1..=params.seconds {
        sleep_until(started + Duration::from_secs(second)).await;
        let (finished, published) = (tally.done() / deliveries, published.load(Ordering::Relaxed));
        seconds.finished.push(finished - finished_before);
        seconds.published.push(published - published_before);
        (finished_before, published_before) = (finished, published);
    }
    join_all(publishers).await?;
    workers.stop().await?;
    Ok(seconds)
}

async fn publish_steadily(
    mut caller: Caller,
    params: Steady,
    end: Instant,
    published: Arc<AtomicU64>,
    tally: Arc<Tally>,
) -> Result<(), AnyError> {
    while Instant::now() < end {
        if published.load(Ordering::Relaxed).saturating_sub(tally.done()) >= BACKLOG_MAX {
            sleep(POLL_INTERVAL).await;
            continue;
        }
        caller.publish(payloads(params.batch, params.bytes), EventShape::default()).await?;
        published.fetch_add(params.batch as u64, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_call_publishes_the_rest() {
        let left = AtomicUsize::new(250);
        let taken: Vec<_> = std::iter::from_fn(|| take_batch(&left, 100)).collect();
        assert_eq!(taken, [100, 100, 50]);
    }

    #[test]
    fn ticks_are_at_least_a_millisecond_apart() {
        assert_eq!(schedule(50.0), (Duration::from_millis(20), 1));
        assert_eq!(schedule(1000.0), (Duration::from_millis(1), 1));
        assert_eq!(schedule(2500.0), (Duration::from_micros(1200), 3));
    }
}
