//! Upkeep that recurs. All processes on a database are equal: whoever finds a task due takes it by its row, and what
//! came of it is written there for everyone to see.

use std::pin::pin;
use std::str::FromStr;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::queue::Queue;

/// A piece of upkeep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MaintenanceTask {
    /// Brings back deliveries whose lease ran out: [`Queue::release_expired_once`].
    ReleaseExpired,
    /// Buries waiting deliveries past their deadline: [`Queue::expire_once`].
    Expire,
    /// Goes on giving new subscriptions their past: [`Queue::backfill_once`].
    Backfill,
    /// Clears away what nobody needs any more: [`Queue::prune_once`].
    Prune,
    /// Puts schedules right after the clock was put back: [`Queue::reschedule_once`].
    Reschedule,
    /// Makes months of history ahead and drops those that are over: [`Queue::partitions_once`].
    Partitions,
    /// Deletes history that is kept no longer: [`Queue::retain_once`].
    Retain,
    /// Looks how much there is, for charts: [`Queue::sample_once`].
    Sample,
    /// Puts old samples together: [`Queue::thin_samples_once`].
    ThinSamples,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl MaintenanceTask {
    /// Done at once wherever they are due: others wait for what they bring.
    pub(crate) const QUICK: &[MaintenanceTask] = &[MaintenanceTask::ReleaseExpired, MaintenanceTask::Expire];
    /// Done beside the quick ones, which they must not hold up, in this order: what may take long comes last.
    pub(crate) const SLOW: &[MaintenanceTask] = &[
        MaintenanceTask::Sample,
        MaintenanceTask::Partitions,
        MaintenanceTask::Reschedule,
        MaintenanceTask::Prune,
        MaintenanceTask::ThinSamples,
        MaintenanceTask::Retain,
        MaintenanceTask::Backfill,
    ];

    /// Its name.
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

    /// How often it is done, give or take a tenth.
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

    /// For how long whoever took it is left alone with it, unless he says that he is still at it. Two at once do no
    /// harm: they only do work twice.
    pub(crate) const PATIENCE: Duration = MINUTE;

    /// Whether it is done for the whole database rather than for each namespace. Its row is in `default`.
    pub(crate) fn is_of_database(self) -> bool {
        self == MaintenanceTask::Partitions
    }

    /// How much there was to do, and whether there is more that could not be done in one go.
    async fn once(self, queue: &Queue) -> Result<(usize, bool)> {
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
        found.ok_or_else(|| Error::invalid("task", format!("'{name}' is not a task")))
    }
}

/// A task that was done, or tried, just now.
#[derive(Debug, Clone, PartialEq)]
pub struct MaintenanceRun {
    /// Which.
    pub task: MaintenanceTask,
    /// How much there was to do: deliveries, rows, files.
    pub done: usize,
    /// How long it took.
    pub took: Duration,
    /// There is more to do than could be done in one go: it goes on soon.
    pub more: bool,
    /// Why it failed, if it did. It is tried again when its time comes.
    pub error: Option<Error>,
}

impl MaintenanceRun {
    /// Jittered, so that what began together does not stay together.
    pub(crate) fn next_in(&self) -> Duration {
        let every = if self.more { SECOND } else { self.task.every() };
        every.mul_f64(0.9 + 0.2 * fastrand::f64())
    }
}

/// What is known of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MaintenanceTaskView {
    /// Which.
    pub task: MaintenanceTask,
    /// How often it is done, give or take a tenth.
    pub every_ms: u64,
    /// When it is due again.
    pub next_at: DateTime<Utc>,
    /// Who did it last, or is at it: host, process id and a few letters.
    pub worker_id: String,
    /// How often it was done.
    pub runs: u64,
    /// When it was done last; absent: never yet.
    pub last_run_at: Option<DateTime<Utc>>,
    /// How long that took.
    pub took_ms: Option<u64>,
    /// How much there was to do: deliveries, rows, files.
    pub done: Option<u64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl Queue {
    /// Does what is due of this namespace's upkeep, and of the whole database's; what that was. `windlass serve` and
    /// every running [`Node`](crate::Node) do this by themselves. Whoever only claims calls it now and then.
    pub async fn maintain_once(&self) -> Result<Vec<MaintenanceRun>> {
        let mut runs = self.do_due(Some(self.namespace()), MaintenanceTask::QUICK).await?;
        runs.append(&mut self.do_due(Some(self.namespace()), MaintenanceTask::SLOW).await?);
        Ok(runs)
    }

    /// What is known of this namespace's upkeep. That of the whole database is shown with `default`.
    pub async fn maintenance_tasks(&self) -> Result<Vec<MaintenanceTaskView>> {
        self.topology().await?;
        self.store().maintenance_tasks(self.namespace()).await
    }

    /// Does those of these tasks that are due and that nobody else is at: of one namespace, or of all. One that fails
    /// does not keep the others from theirs.
    pub(crate) async fn do_due(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
    ) -> Result<Vec<MaintenanceRun>> {
        let mut due = self.store().due_maintenance_tasks(namespace, tasks, self.now()).await?;
        due.sort_by_cached_key(|(namespace, task)| order(namespace, *task));
        let (mut runs, mut failed) = (Vec::new(), None);
        for of_one in due.chunk_by(|one, next| one.0 == next.0 && is_quick(one.1) && is_quick(next.1)) {
            let queue = self.in_namespace(&of_one[0].0)?;
            let tasks: Vec<MaintenanceTask> = of_one.iter().map(|(_, task)| *task).collect();
            match queue.take_and_do(&tasks).await {
                Ok(mut done) => runs.append(&mut done),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(runs), Err)
    }

    async fn take_and_do(&self, tasks: &[MaintenanceTask]) -> Result<Vec<MaintenanceRun>> {
        let worker_id = &*self.core().process;
        let taken = self.store().acquire_maintenance_tasks(self.namespace(), tasks, worker_id, self.now()).await?;
        let mut runs = Vec::with_capacity(taken.len());
        for task in taken {
            runs.push(self.do_one(task).await);
        }
        if !runs.is_empty() {
            self.store().record_maintenance_runs(self.namespace(), &runs, worker_id, self.now()).await?;
        }
        Ok(runs)
    }

    async fn do_one(&self, task: MaintenanceTask) -> MaintenanceRun {
        let begun = Instant::now();
        let (namespace, name) = (self.namespace(), task.as_str());
        let ((done, more), error) = match self.hold_while(task, task.once(self)).await {
            Ok(done) => (done, None),
            Err(error) => ((0, false), Some(error)),
        };
        let took = begun.elapsed();
        match &error {
            Some(error) => tracing::warn!(%error, namespace, task = name, "upkeep failed"),
            // Samples are taken every minute, and change nothing.
            None if done > 0 && task != MaintenanceTask::Sample => {
                tracing::info!(namespace, task = name, done, ?took, "upkeep")
            }
            None => tracing::debug!(namespace, task = name, ?took, "upkeep: nothing to do"),
        }
        let run = MaintenanceRun { task, done, took, more, error };
        self.core().metrics.task(namespace, &run, self.clock().now());
        run
    }

    /// Goes on holding the task for as long as the work takes.
    async fn hold_while<T>(&self, task: MaintenanceTask, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(MaintenanceTask::PATIENCE / 3, &mut work).await {
                Ok(done) => return done,
                Err(_) => {
                    let held = self
                        .store()
                        .extend_maintenance_task(self.namespace(), task, &self.core().process, self.now())
                        .await;
                    if let Err(error) = held {
                        tracing::debug!(%error, task = task.as_str(), "could not hold a task for longer");
                    }
                }
            }
        }
    }
}

/// Quick ones of one namespace together; of the others first each one's turn in all namespaces, then the next one's.
fn order(namespace: &str, task: MaintenanceTask) -> (usize, String, MaintenanceTask) {
    let turn = MaintenanceTask::SLOW.iter().position(|slow| *slow == task);
    (turn.map_or(0, |turn| turn + 1), namespace.to_owned(), task)
}

fn is_quick(task: MaintenanceTask) -> bool {
    MaintenanceTask::QUICK.contains(&task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duty_is_found_by_its_name() {
        for task in MaintenanceTask::QUICK.iter().chain(MaintenanceTask::SLOW) {
            assert_eq!(task.as_str().parse(), Ok(*task));
            assert_eq!(serde_json::to_string(task).unwrap(), format!("\"{}\"", task.as_str()));
        }
        assert!("idle".parse::<MaintenanceTask>().is_err());
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test(start_paused = true)]
    async fn a_duty_stays_held_while_the_work_goes_on() {
        let (clock, hand) = crate::Clock::test("2026-01-01T00:00:00Z".parse().unwrap());
        let queue = Queue::options("sqlite::memory:").clock(clock).open().await.unwrap();
        let take = async |worker_id: &str| {
            queue
                .store()
                .acquire_maintenance_tasks("default", &[MaintenanceTask::Prune], worker_id, queue.now())
                .await
                .unwrap()
        };
        assert_eq!(take(&queue.core().process).await, [MaintenanceTask::Prune]);
        let work = async {
            hand.advance(MaintenanceTask::PATIENCE - SECOND);
            tokio::time::sleep(MaintenanceTask::PATIENCE / 2).await;
        };
        queue.hold_while(MaintenanceTask::Prune, work).await;
        hand.advance(MaintenanceTask::PATIENCE - SECOND);
        assert_eq!(take("other").await, []);
        hand.advance(SECOND);
        assert_eq!(take("other").await, [MaintenanceTask::Prune]);
    }

    #[test]
    fn a_duty_comes_again_about_when_it_should() {
        for (more, every) in [(false, MaintenanceTask::Retain.every()), (true, SECOND)] {
            let run =
                MaintenanceRun { task: MaintenanceTask::Retain, done: 0, took: Duration::ZERO, more, error: None };
            assert!((0..1_000).all(|_| (every.mul_f64(0.9)..=every.mul_f64(1.1)).contains(&run.next_in())));
        }
    }
}
