//! Claims the deliveries of one subscription and starts their handlers.
//!
//! A pool claims as many deliveries as can start immediately, and prefetches some more if its handlers are fast.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::attempt;
use super::backoff::RetryBackoff;
use super::envelope::Envelope;
use super::group_run;
use super::state::NodeState;
use crate::claim::WAIT_MAX;
use crate::error::{Error, Result};
use crate::event::delivery::Delivery;
use crate::queue::in_flight::InFlightGuard;
use crate::queue::outcome::HandlerResult;

/// A pool prefetches as many deliveries as it recently handled in this time. That is enough that fast handlers do not
/// wait for the database, and so little that slow handlers do not withhold deliveries from other nodes.
const PREFETCH_WINDOW: Duration = Duration::from_millis(100);
/// The most deliveries that a pool prefetches.
const PREFETCH_MAX: u64 = 1_000;

/// While a pool has no capacity to claim, it records this often that it is still a consumer.
const CONSUMER_HEARTBEAT: Duration = Duration::from_secs(20);

/// Claims and runs the deliveries of one subscription: those of a type pattern that has a concurrency limit, or all
/// others.
pub(super) struct WorkerPool {
    pub node: Arc<NodeState>,
    pub subscription: String,
    /// The type pattern, if the pool has its own concurrency limit.
    pub limited_type: Option<String>,
    /// The slots of that limit.
    pub type_slots: Option<Arc<Semaphore>>,
    /// How many deliveries may be handled concurrently.
    pub concurrency: usize,
    pub load: PoolLoad,
}

/// The deliveries of a pool that have been claimed and not finished.
#[derive(Default)]
pub(super) struct PoolLoad {
    in_progress: AtomicUsize,
    /// How many deliveries have been handled so far.
    handled: AtomicU64,
    /// Notified when a delivery is finished.
    finished: Notify,
}

/// A delivery counts as in progress until this is dropped.
pub(super) struct InProgressGuard(Arc<WorkerPool>, #[expect(dead_code, reason = "held until the end")] InFlightGuard);

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        self.0.load.in_progress.fetch_sub(1, Ordering::AcqRel);
        self.0.load.finished.notify_one();
    }
}

/// How many deliveries to prefetch, from the recent throughput.
struct PrefetchEstimate {
    since: Instant,
    handled: u64,
    prefetch: u64,
}

impl PrefetchEstimate {
    fn new() -> PrefetchEstimate {
        PrefetchEstimate { since: Instant::now(), handled: 0, prefetch: 0 }
    }

    /// Updates the estimate once per window.
    fn update(&mut self, handled: u64) -> usize {
        let elapsed = self.since.elapsed();
        if elapsed >= PREFETCH_WINDOW {
            let recent = (handled - self.handled) as f64 * PREFETCH_WINDOW.as_secs_f64() / elapsed.as_secs_f64();
            *self = PrefetchEstimate { since: Instant::now(), handled, prefetch: (recent as u64).min(PREFETCH_MAX) };
        }
        self.prefetch as usize
    }
}

impl WorkerPool {
    /// Claims deliveries and starts their handlers until the node stops.
    pub async fn run(self: Arc<WorkerPool>) {
        let (mut estimate, mut backoff) = (PrefetchEstimate::new(), RetryBackoff::for_claims());
        while let Some(capacity) = self.wait_for_capacity(&mut estimate).await {
            let (node, mut handlers_changed) = (&self.node, self.node.handlers_changed.subscribe());
            let claimed = tokio::select! {
                biased;
                () = node.wait_until_stopping() => return,
                _ = handlers_changed.changed() => continue,
                claimed = self.claim_and_start(capacity, WAIT_MAX) => claimed,
            };
            match claimed {
                // Claims no longer wait: the queue is about to be closed.
                Ok(0) if node.queue.is_shutting_down() => return node.wait_until_stopping().await,
                Ok(_) => backoff.reset(),
                Err(Error::Closed) => return,
                Err(error) => {
                    let (node_id, subscription) = (&*node.node_id, &self.subscription);
                    tracing::warn!(%error, node_id, subscription, "could not claim deliveries; retrying");
                    tokio::select! {
                        () = backoff.wait() => {}
                        () = node.wait_until_stopping() => return,
                    }
                }
            }
        }
    }

    /// Waits until the pool can claim deliveries and returns how many; `None` once the node stops.
    async fn wait_for_capacity(&self, estimate: &mut PrefetchEstimate) -> Option<usize> {
        loop {
            let slots_freed = self.node.slots_freed.notified();
            let prefetch = estimate.update(self.load.handled.load(Ordering::Relaxed));
            let in_progress = self.load.in_progress.load(Ordering::Acquire);
            let idle = self.concurrency.saturating_sub(in_progress).min(self.free_slots());
            let prefetched = in_progress.saturating_sub(self.concurrency);
            let to_prefetch = prefetch.saturating_sub(prefetched);
            // Refill the prefetched deliveries only once half of them are used up: fewer, larger claims.
            if idle > 0 || to_prefetch > prefetch / 2 {
                return Some((idle + to_prefetch).min(self.node.queue.limits().claim_batch_max));
            }
            tokio::select! {
                () = self.load.finished.notified() => {}
                () = slots_freed => {}
                () = tokio::time::sleep(CONSUMER_HEARTBEAT) => self.node.queue.note_worker_of(self.node.claim_request(self)),
                () = self.node.wait_until_stopping() => return None,
            }
        }
    }

    /// How many deliveries could start immediately. Other pools of the node may use the remaining slots.
    fn free_slots(&self) -> usize {
        let of_type = self.type_slots.as_ref().map_or(usize::MAX, |slots| slots.available_permits());
        of_type.min(self.node.slots.available_permits())
    }

    /// Claims up to `max` deliveries and starts their handlers. Returns how many it claimed.
    pub async fn claim_and_start(self: &Arc<WorkerPool>, max: usize, wait: Duration) -> Result<usize> {
        let limits = self.node.queue.limits();
        let group_run = self.node.group_run.min(limits.claim_batch_max).min(limits.finish_batch_max);
        let request = self.node.claim_request(self).max(max).group_run(group_run).wait(wait);
        let claimed = self.node.queue.claim(request).await?;
        let count = claimed.len();
        self.start_all(claimed).await?;
        Ok(count)
    }

    /// Starts the handlers of claimed deliveries. It must not be interrupted: a delivery that is not started would keep
    /// its lease.
    async fn start_all(self: &Arc<WorkerPool>, claimed: Vec<Delivery>) -> Result<()> {
        // Some handlers of a retried delivery may have finished in an earlier attempt.
        let mut retried = Vec::new();
        for mut run in split_into_runs(claimed) {
            match run.pop() {
                Some(last) if !run.is_empty() => {
                    run.push(last);
                    self.start_run(run);
                }
                Some(delivery) if delivery.attempts <= 1 => self.start(delivery, Some(Vec::new())),
                delivery => retried.extend(delivery),
            }
        }
        if retried.is_empty() {
            return Ok(());
        }
        let (pool, in_flight) = (self.clone(), self.node.in_flight.begin());
        // Spawned, so that it completes even if this future is dropped.
        let starting = tokio::spawn(async move {
            let started = pool.start_retried(retried).await;
            drop(in_flight);
            started
        });
        starting.await.unwrap_or(Err(Error::Closed))
    }

    fn start(self: &Arc<WorkerPool>, delivery: Delivery, earlier_results: Option<Vec<HandlerResult>>) {
        let guard = self.begin();
        // The task is moved several times when it is spawned. The `Arc` keeps it small.
        let event = Envelope(Arc::new(delivery));
        tokio::spawn(attempt::process_delivery(guard, event, earlier_results));
    }

    /// A run counts as one delivery in progress: its deliveries are handled one after the other.
    fn start_run(self: &Arc<WorkerPool>, run: Vec<Delivery>) {
        let guard = self.begin();
        let run = run.into_iter().map(|delivery| Envelope(Arc::new(delivery))).collect();
        tokio::spawn(group_run::process_run(guard, run));
    }

    fn begin(self: &Arc<WorkerPool>) -> InProgressGuard {
        self.load.in_progress.fetch_add(1, Ordering::AcqRel);
        InProgressGuard(self.clone(), self.node.in_flight.begin())
    }

    /// Starts deliveries that were attempted before, with the handler results of those attempts.
    async fn start_retried(self: &Arc<WorkerPool>, claimed: Vec<Delivery>) -> Result<()> {
        match self.node.queue.handler_results(&claimed.iter().collect::<Vec<_>>()).await {
            Ok(results) => {
                claimed.into_iter().zip(results).for_each(|(delivery, results)| self.start(delivery, Some(results)));
                Ok(())
            }
            Err(error) => {
                claimed.into_iter().for_each(|delivery| self.start(delivery, None));
                Err(error)
            }
        }
    }
}

/// Groups consecutive deliveries of the same group. Deliveries without a group stay alone.
fn split_into_runs(claimed: Vec<Delivery>) -> Vec<Vec<Delivery>> {
    let mut runs: Vec<Vec<Delivery>> = Vec::with_capacity(claimed.len());
    for delivery in claimed {
        let group_id = &delivery.event.group_id;
        match runs.last_mut() {
            Some(run) if group_id.is_some() && run.first().is_some_and(|first| first.event.group_id == *group_id) => {
                run.push(delivery);
            }
            _ => runs.push(vec![delivery]),
        }
    }
    runs
}

impl InProgressGuard {
    pub fn node(&self) -> &Arc<NodeState> {
        &self.0.node
    }

    /// Waits for a slot of the node, and before that for one of the type if the type has its own limit.
    pub async fn acquire_slots(&self) -> Option<HandlerSlots<'_>> {
        let of_type = match &self.0.type_slots {
            Some(slots) => Some(slots.clone().acquire_owned().await.ok()?),
            None => None,
        };
        let of_node = self.0.node.slots.clone().acquire_owned().await.ok()?;
        Some(HandlerSlots { pool: &self.0, permits: Some((of_type, of_node)) })
    }
}

/// The slots that a delivery occupies while its handlers run. Dropping it frees them.
pub(super) struct HandlerSlots<'a> {
    pool: &'a WorkerPool,
    permits: Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)>,
}

impl Drop for HandlerSlots<'_> {
    fn drop(&mut self) {
        self.pool.load.handled.fetch_add(1, Ordering::Relaxed);
        self.permits.take();
        self.pool.node.slots_freed.notify_waiters();
    }
}
