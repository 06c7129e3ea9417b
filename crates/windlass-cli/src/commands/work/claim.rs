//! Taking events: one loop, as many as there are free places.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{ANSWER_MAX, Worker};
use crate::Result;
use crate::api::{Refusal, Unreachable};

/// How long a claim waits for events to come.
const WAIT: Duration = Duration::from_secs(30);
/// The most that one claim may ask for.
const CLAIM_MAX: usize = 100;

/// An event that is ours.
#[derive(Deserialize)]
pub struct Taken {
    pub id: i64,
    #[serde(rename = "type")]
    pub event_type: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub tags: String,
    pub payload: Box<RawValue>,
    pub attempt: u32,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
    pub lease: String,
    pub created_at: String,
    pub group_id: Option<String>,
    pub key: Option<String>,
    #[serde(default)]
    pub priority: i16,
    pub metadata: Option<Box<RawValue>>,
}

impl Worker {
    /// Until it is told to stop, or has done what it was asked for; then until what runs has ended.
    pub async fn take_and_run(self: Arc<Worker>) -> Result {
        let mut running = JoinSet::new();
        let places = Arc::new(Semaphore::new(self.options.concurrency as usize));
        let taking = self.take_all(&places, &mut running).await;
        if let Err(error) = &taking {
            tracing::error!(%error, running = running.len(), "nothing more is taken");
        }
        while running.join_next().await.is_some() {}
        taking.and_then(|()| match self.stop.broken() {
            Some(why) => Err(why.into()),
            None => Ok(()),
        })
    }

    async fn take_all(self: &Arc<Worker>, places: &Arc<Semaphore>, running: &mut JoinSet<()>) -> Result {
        let (mut pause, mut left) = (Pause::default(), self.options.max);
        while left != Some(0) && self.stop.goes_on() {
            let Some(free) = self.room(places, left).await else { break };
            let asked_at = Instant::now();
            let taken = tokio::select! {
                taken = self.claim(free) => taken,
                () = self.stop.begun() => break,
            };
            let taken = match taken {
                Ok(taken) => taken,
                Err(error) if is_passing(&*error) => {
                    pause.wait(self, &*error).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            pause = Pause::default();
            left = left.map(|left| left.saturating_sub(taken.len() as u64));
            if taken.is_empty() && self.options.until_empty {
                // What runs may publish, or come back.
                if running.join_next().await.is_none() {
                    break;
                }
            }
            for run in runs(taken) {
                let place = places.clone().acquire_owned().await?;
                let worker = self.clone();
                running.spawn(async move {
                    worker.attempt_all(run, asked_at).await;
                    drop(place);
                });
            }
            while running.try_join_next().is_some() {}
        }
        Ok(())
    }

    /// How many may be taken, once there is a place; `None`: it is told to stop.
    async fn room(&self, places: &Semaphore, left: Option<u64>) -> Option<usize> {
        tokio::select! {
            place = places.acquire() => drop(place.ok()?),
            () = self.stop.begun() => return None,
        }
        let left = left.map_or(CLAIM_MAX, |left| usize::try_from(left).unwrap_or(CLAIM_MAX));
        Some(places.available_permits().min(left).clamp(1, CLAIM_MAX))
    }

    async fn claim(&self, max: usize) -> Result<Vec<Taken>> {
        #[derive(Deserialize)]
        struct Claimed {
            events: Vec<Taken>,
        }
        let wait_ms = if self.options.until_empty { 0 } else { WAIT.as_millis() as u64 };
        // A run counts as one event of a claim, but not of --max.
        let group_run = if self.options.max.is_some() { 1 } else { self.options.group_run };
        let mut body = json!({
            "worker_id": self.worker_id, "subscription": self.options.subscription, "max": max, "group_run": group_run,
            "wait_ms": wait_ms, "lease_ms": self.options.lease.as_millis() as u64,
        });
        for (name, list) in [("types", &self.options.types), ("tags", &self.options.tags)] {
            if !list.is_empty() {
                body[name] = json!(list);
            }
        }
        let Claimed { events } = self.ask("/events/claim", &body, WAIT + ANSWER_MAX).await?.read()?;
        Ok(events)
    }
}

/// The events of each group together. They come one after the other.
fn runs(taken: Vec<Taken>) -> Vec<Vec<Taken>> {
    let mut runs: Vec<Vec<Taken>> = Vec::with_capacity(taken.len());
    for event in taken {
        let of_group = |run: &&mut Vec<Taken>| event.group_id.is_some() && run[0].group_id == event.group_id;
        match runs.last_mut().filter(of_group) {
            Some(run) => run.push(event),
            None => runs.push(vec![event]),
        }
    }
    runs
}

/// Whether it may be better later: nobody answers, or is not able to.
pub fn is_passing(error: &(dyn std::error::Error + 'static)) -> bool {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => refusal.status == 429 || refusal.status >= 500,
        None => error.is::<Unreachable>(),
    }
}

/// Between tries, each longer than the one before.
pub struct Pause {
    next: Duration,
    max: Duration,
}

impl Default for Pause {
    /// The database may be restarting.
    fn default() -> Pause {
        Pause { next: Duration::from_secs(2), max: Duration::from_secs(30) }
    }
}

impl Pause {
    /// Something waits to be written down.
    pub fn short() -> Pause {
        Pause { next: Duration::from_millis(200), max: Duration::from_secs(5) }
    }

    /// Workers that failed together do not come back together.
    pub fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.75 + 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(self.max);
        pause
    }

    async fn wait(&mut self, worker: &Worker, error: &(dyn std::error::Error + 'static)) {
        let pause = self.next();
        tracing::warn!(%error, again_in = ?pause, "could not take events");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = worker.stop.begun() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_waited_out() {
        for (status, passes) in [(503, true), (500, true), (429, true), (401, false), (404, false), (400, false)] {
            assert_eq!(is_passing(&Refusal::new(status, "no")), passes, "{status}");
        }
        assert!(is_passing(&Unreachable("away".into())));
        assert!(!is_passing(&std::io::Error::other("disk")));
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let mut pause = Pause::default();
        let pauses: Vec<f64> = (0..6).map(|_| pause.next().as_secs_f64()).collect();
        for (pause, about) in pauses.iter().zip([2.0, 4.0, 8.0, 16.0, 30.0, 30.0]) {
            assert!((about * 0.75..=about * 1.25).contains(pause), "{pauses:?}");
        }
    }
}
