//! Background work that every server and every node runs.
//!
//! This module has the loops; they run concurrently, so that none blocks another. `task` lists the maintenance tasks
//! and shares them between processes, and the other modules implement them. Firing of schedules is in `schedule/`,
//! routing in `queue/`. Start at [`Queue::maintain_all`].

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

/// The pause after a failed round. It doubles with each further failure, up to `RETRY_MAX`.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// How soon a task that has more to do continues.
const CONTINUE_AFTER: Duration = Duration::from_secs(1);

/// The longest interval between checks for schedules that other processes created.
const SCHEDULE_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The longest interval between checks for arrivals in namespaces without claims.
const ARRIVAL_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

impl Queue {
    /// Runs the maintenance tasks of all namespaces and fires their schedules until the future is dropped. Checks for
    /// due work once per `every`. For servers; a [`Node`](crate::Node) maintains its own namespace.
    pub async fn maintain_all(&self, every: Duration) {
        self.run_loops(None, every).await;
    }

    /// Like [`Queue::maintain_all`], for this namespace.
    pub(crate) async fn maintain(&self, every: Duration) {
        self.run_loops(Some(self.namespace()), every).await;
    }

    async fn run_loops(&self, namespace: Option<&str>, every: Duration) {
        tokio::join!(
            self.run_tasks(namespace, MaintenanceTask::QUICK, every),
            self.run_tasks(namespace, MaintenanceTask::SLOW, every),
            self.fire_schedules(namespace, every.min(SCHEDULE_CHECK_INTERVAL_MAX)),
            self.route(namespace, every.min(ARRIVAL_CHECK_INTERVAL_MAX)),
        );
    }

    /// Runs due maintenance tasks, the first time immediately.
    async fn run_tasks(&self, namespace: Option<&str>, tasks: &[MaintenanceTask], every: Duration) {
        let mut wait = every;
        loop {
            let runs = self.run_due_tasks(namespace, tasks).await;
            let has_more = |runs: &Vec<MaintenanceRun>| runs.iter().any(|run| run.more);
            wait = next_wait(wait, runs.map(|runs| if has_more(&runs) { every.min(CONTINUE_AFTER) } else { every }));
            sleep_about(wait).await;
        }
    }

    /// Routes arrivals that no claimer routes.
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

    /// Fires schedules on time. Schedules of other processes are noticed within `every`.
    async fn fire_schedules(&self, namespace: Option<&str>, every: Duration) {
        let mut changed = self.core().schedules_changed.subscribe();
        let mut wait = every;
        loop {
            changed.mark_unchanged();
            let next_in = match namespace {
                Some(_) => self.fire_schedules_once().await.map(|fired| fired.next_in),
                None => self.fire_all().await,
            };
            wait = next_wait(wait, next_in.map(|next_in| next_in.unwrap_or(every).min(every)));
            // This cannot fail: the queue owns the sender.
            let _ = tokio::time::timeout(wait, changed.changed()).await;
        }
    }

    /// Fires the due schedules of all namespaces. Returns how long until the next tick. A failing namespace does not
    /// block the others.
    async fn fire_all(&self) -> Result<Option<Duration>> {
        let mut waits = Vec::new();
        for (namespace, wait) in self.store().next_ticks(self.now()).await? {
            if !wait.is_zero() {
                waits.push(wait);
                continue;
            }
            match self.in_namespace(&namespace)?.fire_schedules_once().await {
                Ok(fired) => waits.extend(fired.next_in),
                Err(error) => tracing::warn!(%error, namespace, "could not fire schedules"),
            }
        }
        Ok(waits.into_iter().min())
    }
}

/// How long to wait after a round: the returned duration, or an increasing one after failures.
fn next_wait(last: Duration, round: Result<Duration>) -> Duration {
    round.unwrap_or_else(|error| {
        let next = (last * 2).clamp(RETRY_MIN, RETRY_MAX);
        tracing::warn!(%error, retry_in = ?next, "maintenance failed; retrying");
        next
    })
}

/// Jittered, so that processes that started at the same time do not stay in step.
async fn sleep_about(wait: Duration) {
    tokio::time::sleep(wait.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
}
