//! Maintenance tasks: their intervals, and how processes share them.
//!
//! Each task has a row in the database. A process that finds a task due acquires the row for a limited time, runs the
//! task, and stores the result in the row. All processes are equal; there is no leader.

use std::pin::pin;
use std::str::FromStr;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::queue::Queue;

/// A recurring maintenance task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MaintenanceTask {
    /// Releases deliveries with an expired lease: [`Queue::release_expired_once`].
    ReleaseExpired,
    /// Dead-letters pending deliveries past their deadline: [`Queue::expire_once`].
    Expire,
    /// Backfills subscriptions that start in the past: [`Queue::backfill_once`].
    Backfill,
    /// Deletes obsolete rows: [`Queue::prune_once`].
    Prune,
    /// Recomputes schedules after the clock moved back: [`Queue::reschedule_once`].
    Reschedule,
    /// Creates monthly partitions of history ahead and drops expired ones: [`Queue::partitions_once`].
    Partitions,
    /// Deletes history that exceeds its retention: [`Queue::retain_once`].
    Retain,
    /// Samples the queue depth for charts: [`Queue::sample_once`].
    Sample,
    /// Merges old samples: [`Queue::thin_samples_once`].
    ThinSamples,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl MaintenanceTask {
    /// Short tasks that deliveries depend on.
    pub(crate) const QUICK: &[MaintenanceTask] = &[MaintenanceTask::ReleaseExpired, MaintenanceTask::Expire];
    /// Tasks that run concurrently with the quick ones, in this order: those that may take long come last.
    pub(crate) const SLOW: &[MaintenanceTask] = &[
        MaintenanceTask::Sample,
        MaintenanceTask::Partitions,
        MaintenanceTask::Reschedule,
        MaintenanceTask::Prune,
        MaintenanceTask::ThinSamples,
        MaintenanceTask::Retain,
        MaintenanceTask::Backfill,
    ];

    /// The task's name in JSON and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            MaintenanceTask::ReleaseExpired => "release_expired",
            MaintenanceTask::Expire => "expire",
            MaintenanceTask::Backfill => "backfill",
            MaintenanceTask::Prune => "prune",
            MaintenanceTask::Reschedule => "reschedule",
            MaintenanceTask::Partitions => "partitions",
            MaintenanceTask::Retain => "retain",
            MaintenanceTask::Sample => "sample",
            MaintenanceTask::ThinSamples => "thin_samples",
        }
    }

    /// The interval of the task, before jitter.
    pub(crate) fn every(self) -> Duration {
        match self {
            MaintenanceTask::ReleaseExpired | MaintenanceTask::Expire => 10 * SECOND,
            MaintenanceTask::Backfill => 30 * SECOND,
            MaintenanceTask::Sample | MaintenanceTask::Reschedule => MINUTE,
            MaintenanceTask::Prune | MaintenanceTask::Retain => 5 * MINUTE,
            MaintenanceTask::ThinSamples => 10 * MINUTE,
            MaintenanceTask::Partitions => 60 * MINUTE,
        }
    }

    /// How long a process holds an acquired task without extending it. If two processes run a task at the same time,
    /// they only repeat work.
    pub(crate) const LEASE: Duration = MINUTE;

    /// Whether the task runs once for the whole database instead of once per namespace. Its row is in `default`.
    pub(crate) fn is_database_wide(self) -> bool {
        self == MaintenanceTask::Partitions
    }

    /// Runs the task. Returns how much it did, and whether there is more to do.
    async fn run(self, queue: &Queue) -> Result<(usize, bool)> {
        let done = match self {
            MaintenanceTask::ReleaseExpired => queue.release_expired_once().await,
            MaintenanceTask::Expire => queue.expire_once().await,
            MaintenanceTask::Backfill => queue.backfill_once().await,
            MaintenanceTask::Prune => queue.prune_once().await,
            MaintenanceTask::Reschedule => queue.reschedule_once().await,
            MaintenanceTask::Partitions => {
                queue.partitions_once().await.map(|done| done.made + done.dropped + done.strays)
            }
            MaintenanceTask::Retain => {
                let done = queue.retain_once().await?;
                return Ok((done.deliveries + done.dead_letters + done.events, done.more));
            }
            MaintenanceTask::Sample => queue.sample_once().await,
            MaintenanceTask::ThinSamples => queue.thin_samples_once().await,
        };
        Ok((done?, false))
    }
}

impl FromStr for MaintenanceTask {
    type Err = Error;

    fn from_str(name: &str) -> Result<MaintenanceTask> {
        let all = MaintenanceTask::QUICK.iter().chain(MaintenanceTask::SLOW);
        let found = all.copied().find(|task| task.as_str() == name);
        found.ok_or_else(|| Error::invalid("task", format!("'{name}' is not a maintenance task")))
    }
}

/// The result of one run of a maintenance task.
#[derive(Debug, Clone, PartialEq)]
pub struct MaintenanceRun {
    /// The task.
    pub task: MaintenanceTask,
    /// How many deliveries, rows or files the task processed.
    pub done: usize,
    /// The duration of the run.
    pub took: Duration,
    /// There is more to do; the next run follows soon.
    pub more: bool,
    /// The error, if the run failed. The task runs again at its next regular time.
    pub error: Option<Error>,
}

impl MaintenanceRun {
    /// Jittered, so that tasks that started at the same time do not stay in step.
    pub(crate) fn next_in(&self) -> Duration {
        let every = if self.more { SECOND } else { self.task.every() };
        every.mul_f64(0.9 + 0.2 * fastrand::f64())
    }
}

/// The stored state of a maintenance task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MaintenanceTaskView {
    /// The task.
    pub task: MaintenanceTask,
    /// The interval, before jitter of up to 10 %.
    pub every_ms: u64,
    /// When the task is due again.
    pub next_at: DateTime<Utc>,
    /// The process that ran the task last or is running it: host, process id and a few letters.
    pub worker_id: String,
    /// How many times the task has run.
    pub runs: u64,
    /// When the task last ran; absent if it never did.
    pub last_run_at: Option<DateTime<Utc>>,
    /// The duration of the last run.
    pub took_ms: Option<u64>,
    /// How many deliveries, rows or files the last run processed.
    pub done: Option<u64>,
    /// The error of the last run, if it failed.
    pub error: Option<String>,
}

impl Queue {
    /// Runs the due maintenance tasks of this namespace and of the whole database. Returns what was run. `windlass
    /// serve` and every running [`Node`](crate::Node) do this automatically; call it periodically if you run neither.
    pub async fn maintain_once(&self) -> Result<Vec<MaintenanceRun>> {
        let mut runs = self.run_due_tasks(Some(self.namespace()), MaintenanceTask::QUICK).await?;
        runs.append(&mut self.run_due_tasks(Some(self.namespace()), MaintenanceTask::SLOW).await?);
        Ok(runs)
    }

    /// The state of this namespace's maintenance tasks. Tasks of the whole database belong to `default`.
    pub async fn maintenance_tasks(&self) -> Result<Vec<MaintenanceTaskView>> {
        self.topology().await?;
        self.store().maintenance_tasks(self.namespace()).await
    }

    /// Runs those of the given tasks that are due and not acquired by another process, for one namespace or for all. An
    /// error in one namespace does not prevent the tasks of the others.
    pub(crate) async fn run_due_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
    ) -> Result<Vec<MaintenanceRun>> {
        let mut due = self.store().due_maintenance_tasks(namespace, tasks, self.now()).await?;
        due.sort_by_cached_key(|(namespace, task)| order(namespace, *task));
        let (mut runs, mut failed) = (Vec::new(), None);
        for chunk in due.chunk_by(|one, next| one.0 == next.0 && is_quick(one.1) && is_quick(next.1)) {
            let queue = self.in_namespace(&chunk[0].0)?;
            let tasks: Vec<MaintenanceTask> = chunk.iter().map(|(_, task)| *task).collect();
            match queue.acquire_and_run(&tasks).await {
                Ok(mut done) => runs.append(&mut done),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(runs), Err)
    }

    async fn acquire_and_run(&self, tasks: &[MaintenanceTask]) -> Result<Vec<MaintenanceRun>> {
        let worker_id = &*self.core().process;
        let acquired = self.store().acquire_maintenance_tasks(self.namespace(), tasks, worker_id, self.now()).await?;
        let mut runs = Vec::with_capacity(acquired.len());
        for task in acquired {
            runs.push(self.run_task(task).await);
        }
        if !runs.is_empty() {
            self.store().record_maintenance_runs(self.namespace(), &runs, worker_id, self.now()).await?;
        }
        Ok(runs)
    }

    async fn run_task(&self, task: MaintenanceTask) -> MaintenanceRun {
        let started = Instant::now();
        let (namespace, name) = (self.namespace(), task.as_str());
        let ((done, more), error) = match self.extend_while(task, task.run(self)).await {
            Ok(done) => (done, None),
            Err(error) => ((0, false), Some(error)),
        };
        let took = started.elapsed();
        match &error {
            Some(error) => tracing::warn!(%error, namespace, task = name, "maintenance task failed"),
            // Sampling does something every minute; it is not worth a line.
            None if done > 0 && task != MaintenanceTask::Sample => {
                tracing::info!(namespace, task = name, done, ?took, "maintenance task done")
            }
            None => tracing::debug!(namespace, task = name, ?took, "maintenance task had nothing to do"),
        }
        let run = MaintenanceRun { task, done, took, more, error };
        self.core().metrics.task(namespace, &run, self.clock().now());
        run
    }

    /// Extends the acquired task until the work is done.
    async fn extend_while<T>(&self, task: MaintenanceTask, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(MaintenanceTask::LEASE / 3, &mut work).await {
                Ok(done) => return done,
                Err(_) => {
                    let extended = self
                        .store()
                        .extend_maintenance_task(self.namespace(), task, &self.core().process, self.now())
                        .await;
                    if let Err(error) = extended {
                        tracing::debug!(%error, task = task.as_str(), "could not extend the acquired task");
                    }
                }
            }
        }
    }
}

/// Sorts quick tasks by namespace, and slow tasks by task: one slow task runs in all namespaces before the next one.
fn order(namespace: &str, task: MaintenanceTask) -> (usize, String, MaintenanceTask) {
    let index = MaintenanceTask::SLOW.iter().position(|slow| *slow == task);
    (index.map_or(0, |index| index + 1), namespace.to_owned(), task)
}

fn is_quick(task: MaintenanceTask) -> bool {
    MaintenanceTask::QUICK.contains(&task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_parses_from_its_name() {
        for task in MaintenanceTask::QUICK.iter().chain(MaintenanceTask::SLOW) {
            assert_eq!(task.as_str().parse(), Ok(*task));
            assert_eq!(serde_json::to_string(task).unwrap(), format!("\"{}\"", task.as_str()));
        }
        assert!("idle".parse::<MaintenanceTask>().is_err());
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test(start_paused = true)]
    async fn task_stays_acquired_while_it_runs() {
        let (clock, test_clock) = crate::Clock::test("2026-01-01T00:00:00Z".parse().unwrap());
        let queue = Queue::options("sqlite::memory:").clock(clock).open().await.unwrap();
        let acquire = async |worker_id: &str| {
            queue
                .store()
                .acquire_maintenance_tasks("default", &[MaintenanceTask::Prune], worker_id, queue.now())
                .await
                .unwrap()
        };
        assert_eq!(acquire(&queue.core().process).await, [MaintenanceTask::Prune]);
        let work = async {
            test_clock.advance(MaintenanceTask::LEASE - SECOND);
            tokio::time::sleep(MaintenanceTask::LEASE / 2).await;
        };
        queue.extend_while(MaintenanceTask::Prune, work).await;
        test_clock.advance(MaintenanceTask::LEASE - SECOND);
        assert_eq!(acquire("other").await, []);
        test_clock.advance(SECOND);
        assert_eq!(acquire("other").await, [MaintenanceTask::Prune]);
    }

    #[test]
    fn next_run_is_jittered_around_the_interval() {
        for (more, every) in [(false, MaintenanceTask::Retain.every()), (true, SECOND)] {
            let run =
                MaintenanceRun { task: MaintenanceTask::Retain, done: 0, took: Duration::ZERO, more, error: None };
            assert!((0..1_000).all(|_| (every.mul_f64(0.9)..=every.mul_f64(1.1)).contains(&run.next_in())));
        }
    }
}
