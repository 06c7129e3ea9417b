//! Claims events in one loop, as many as there are free slots, and starts an attempt for each run.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use windlass_api::ClaimRequest;

use super::{RESPONSE_TIMEOUT, Worker};
use crate::Result;
use crate::api::responses::{Claimed, ClaimedEvent};
use crate::api::{ApiError, Unreachable};

/// How long a claim request waits for events.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// The most events that one claim requests.
const CLAIM_MAX: usize = 100;

impl Worker {
    /// Claims events until the shutdown begins or the requested work is done. Then waits for the running attempts.
    pub async fn claim_and_run(self: Arc<Worker>) -> Result {
        let mut running = JoinSet::new();
        let slots = Arc::new(Semaphore::new(self.options.concurrency as usize));
        let result = self.claim_all(&slots, &mut running).await;
        if let Err(error) = &result {
            tracing::error!(%error, running = running.len(), "claiming no more events");
        }
        while running.join_next().await.is_some() {}
        result.and_then(|()| match self.shutdown.failure() {
            Some(reason) => Err(reason.into()),
            None => Ok(()),
        })
    }

    async fn claim_all(self: &Arc<Worker>, slots: &Arc<Semaphore>, running: &mut JoinSet<()>) -> Result {
        let (mut backoff, mut remaining) = (Backoff::default(), self.options.max);
        while remaining != Some(0) && self.shutdown.is_running() {
            let Some(max) = self.claim_max(slots, remaining).await else { break };
            let claim_sent_at = Instant::now();
            let claimed = tokio::select! {
                claimed = self.claim(max) => claimed,
                () = self.shutdown.wait_for_draining() => break,
            };
            let events = match claimed {
                Ok(events) => events,
                Err(error) if is_temporary(&*error) => {
                    backoff.wait(self, &*error).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            backoff = Backoff::default();
            remaining = remaining.map(|remaining| remaining.saturating_sub(events.len() as u64));
            if events.is_empty() && self.options.until_empty {
                // A running attempt may publish events, or its event may become pending again.
                if running.join_next().await.is_none() {
                    break;
                }
            }
            for run in split_into_runs(events) {
                let slot = slots.clone().acquire_owned().await?;
                let worker = self.clone();
                running.spawn(async move {
                    worker.process_run(run, claim_sent_at).await;
                    drop(slot);
                });
            }
            while running.try_join_next().is_some() {}
        }
        Ok(())
    }

    /// Waits for a free slot and returns how many events to claim. Returns `None` when the shutdown begins.
    async fn claim_max(&self, slots: &Semaphore, remaining: Option<u64>) -> Option<usize> {
        tokio::select! {
            slot = slots.acquire() => drop(slot.ok()?),
            () = self.shutdown.wait_for_draining() => return None,
        }
        let remaining = remaining.map_or(CLAIM_MAX, |remaining| usize::try_from(remaining).unwrap_or(CLAIM_MAX));
        Some(slots.available_permits().min(remaining).clamp(1, CLAIM_MAX))
    }

    async fn claim(&self, max: usize) -> Result<Vec<ClaimedEvent>> {
        let wait_ms = if self.options.until_empty { 0 } else { CLAIM_WAIT.as_millis() as u64 };
        // A claim counts a run as one event, but --max counts its events.
        let group_run = if self.options.max.is_some() { 1 } else { self.options.group_run };
        let names = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone().into());
        let body = ClaimRequest {
            worker_id: self.worker_id.clone(),
            tags: names(&self.options.tags),
            types: names(&self.options.types),
            subscription: Some(self.options.subscription.clone()),
            max: Some(max),
            group_run: Some(group_run as usize),
            wait_ms: Some(wait_ms),
            lease_ms: Some(self.options.lease.as_millis() as u64),
        };
        let Claimed { events } = self.post("/events/claim", &body, CLAIM_WAIT + RESPONSE_TIMEOUT).await?.json()?;
        Ok(events)
    }
}

/// Groups consecutive events of the same group. A claim returns the events of a run one after the other.
fn split_into_runs(events: Vec<ClaimedEvent>) -> Vec<Vec<ClaimedEvent>> {
    let mut runs: Vec<Vec<ClaimedEvent>> = Vec::with_capacity(events.len());
    for event in events {
        let is_same_group =
            |run: &&mut Vec<ClaimedEvent>| event.group_id.is_some() && run[0].group_id == event.group_id;
        match runs.last_mut().filter(is_same_group) {
            Some(run) => run.push(event),
            None => runs.push(vec![event]),
        }
    }
    runs
}

/// Whether the error is temporary: the server is unreachable or overloaded, or fails internally.
pub fn is_temporary(error: &(dyn std::error::Error + 'static)) -> bool {
    match error.downcast_ref::<ApiError>() {
        Some(api_error) => api_error.status == 429 || api_error.status >= 500,
        None => error.is::<Unreachable>(),
    }
}

/// Growing delays between retries.
pub struct Backoff {
    delay: Duration,
    max: Duration,
}

impl Default for Backoff {
    /// For claims: the database may be restarting.
    fn default() -> Backoff {
        Backoff { delay: Duration::from_secs(2), max: Duration::from_secs(30) }
    }
}

impl Backoff {
    /// For reports, and for starting a command.
    pub fn short() -> Backoff {
        Backoff { delay: Duration::from_millis(200), max: Duration::from_secs(5) }
    }

    /// Returns the next delay. Its jitter keeps workers that failed together from retrying together.
    pub fn next_delay(&mut self) -> Duration {
        let jittered = self.delay.mul_f64(0.75 + 0.5 * fastrand::f64());
        self.delay = (self.delay * 2).min(self.max);
        jittered
    }

    async fn wait(&mut self, worker: &Worker, error: &(dyn std::error::Error + 'static)) {
        let delay = self.next_delay();
        tracing::warn!(%error, again_in = ?delay, "could not claim events");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = worker.shutdown.wait_for_draining() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_retried() {
        for (status, expected) in [(503, true), (500, true), (429, true), (401, false), (404, false), (400, false)] {
            assert_eq!(is_temporary(&ApiError::new(status, "no")), expected, "{status}");
        }
        assert!(is_temporary(&Unreachable("away".into())));
        assert!(!is_temporary(&std::io::Error::other("disk")));
    }

    #[test]
    fn backoff_delays_grow_up_to_the_maximum() {
        let mut backoff = Backoff::default();
        let delays: Vec<f64> = (0..6).map(|_| backoff.next_delay().as_secs_f64()).collect();
        for (delay, expected) in delays.iter().zip([2.0, 4.0, 8.0, 16.0, 30.0, 30.0]) {
            assert!((expected * 0.75..=expected * 1.25).contains(delay), "{delays:?}");
        }
    }
}
