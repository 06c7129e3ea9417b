//! The loops that every server and every node runs, beside each other so that none holds up another.

use std::time::Duration;

use crate::error::Result;
use crate::maintenance::task::{MaintenanceRun, MaintenanceTask};
use crate::queue::Queue;

pub(crate) mod archive;
pub(crate) mod clock_check;
pub(crate) mod history;
pub(crate) mod months;
pub(crate) mod partitions;
pub(crate) mod release_expired;
pub(crate) mod retain;
pub(crate) mod retention;
pub(crate) mod task;

/// After a failure the next round waits at least this long, twice as long after each further one, …
const RETRY_MIN: Duration = Duration::from_secs(2);
/// … and at most this long.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What could not be done in one go goes on after this time.
const GO_ON: Duration = Duration::from_secs(1);

/// For so long a schedule that another process made may go unseen.
const TICKS_UNSEEN_MAX: Duration = Duration::from_secs(5);

/// An event that has arrived in a namespace without claims may stay there for so long.
const ARRIVALS_UNSEEN_MAX: Duration = Duration::from_secs(1);

impl Queue {
    /// Does the upkeep of all namespaces, and fires their schedules, for as long as this is awaited; looks `every` so
    /// often for what is due. For servers; a [`Node`](crate::Node) sees to its own namespace.
    pub async fn maintain_all(&self, every: Duration) {
        self.keep_up(None, every).await;
    }

    /// The same for this namespace.
    pub(crate) async fn maintain(&self, every: Duration) {
        self.keep_up(Some(self.namespace()), every).await;
    }

    async fn keep_up(&self, namespace: Option<&str>, every: Duration) {
        tokio::join!(
            self.repeat(namespace, MaintenanceTask::QUICK, every),
            self.repeat(namespace, MaintenanceTask::SLOW, every),
            self.tick(namespace, every.min(TICKS_UNSEEN_MAX)),
            self.route(namespace, every.min(ARRIVALS_UNSEEN_MAX)),
        );
    }

    /// At once, and then again and again.
    async fn repeat(&self, namespace: Option<&str>, tasks: &[MaintenanceTask], every: Duration) {
        let mut wait = every;
        loop {
            let done = self.do_due(namespace, tasks).await;
            let unfinished = |runs: &Vec<MaintenanceRun>| runs.iter().any(|run| run.more);
            wait = next_wait(wait, done.map(|runs| if unfinished(&runs) { every.min(GO_ON) } else { every }));
            sleep_about(wait).await;
        }
    }

    /// Routes what has arrived where no claimer's router does.
    async fn route(&self, namespace: Option<&str>, every: Duration) {
        let mut wait = every;
        loop {
            let routed = match namespace {
                Some(_) => self.route_arrivals().await.map(drop),
                None => self.route_all_arrivals().await,
            };
            wait = next_wait(wait, routed.map(|_| every));
            sleep_about(wait).await;
        }
    }

    /// Fires schedules at their time; those that other processes made meanwhile are seen `every` so often.
    async fn tick(&self, namespace: Option<&str>, every: Duration) {
        let mut changed = self.core().schedules_changed.subscribe();
        let mut wait = every;
        loop {
            changed.mark_unchanged();
            let next_in = match namespace {
                Some(_) => self.fire_schedules_once().await.map(|fired| fired.next_in),
                None => self.fire_all().await,
            };
            wait = next_wait(wait, next_in.map(|next_in| next_in.unwrap_or(every).min(every)));
            // Its sender is the queue's, which is here.
            let _ = tokio::time::timeout(wait, changed.changed()).await;
        }
    }

    /// Fires what is due in any namespace; how long until the next tick. A namespace that fails does not keep the others
    /// from theirs.
    async fn fire_all(&self) -> Result<Option<Duration>> {
        let mut waits = Vec::new();
        for (namespace, wait) in self.store().next_ticks(self.now()).await? {
            if !wait.is_zero() {
                waits.push(wait);
                continue;
            }
            match self.in_namespace(&namespace)?.fire_schedules_once().await {
                Ok(fired) => waits.extend(fired.next_in),
                Err(error) => tracing::warn!(%error, namespace, "schedules could not be fired"),
            }
        }
        Ok(waits.into_iter().min())
    }
}

/// How long to wait after a round: as it says, or for longer each time that it fails.
fn next_wait(last: Duration, round: Result<Duration>) -> Duration {
    round.unwrap_or_else(|error| {
        let next = (last * 2).clamp(RETRY_MIN, RETRY_MAX);
        tracing::warn!(%error, again_in = ?next, "upkeep failed");
        next
    })
}

/// Jittered, so that processes started together do not stay together.
async fn sleep_about(wait: Duration) {
    tokio::time::sleep(wait.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
}
