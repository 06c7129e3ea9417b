//! Upkeep that recurs. All processes on a database are equal: whoever finds a duty due takes it by its row, and what
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
pub enum Duty {
    /// Brings back deliveries whose lease ran out: [`Queue::sweep_once`].
    Sweep,
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

impl Duty {
    /// Done at once wherever they are due: others wait for what they bring.
    pub(crate) const QUICK: &[Duty] = &[Duty::Sweep, Duty::Expire];
    /// Done beside the quick ones, which they must not hold up, in this order: what may take long comes last.
    pub(crate) const SLOW: &[Duty] = &[
        Duty::Sample,
        Duty::Partitions,
        Duty::Reschedule,
        Duty::Prune,
        Duty::ThinSamples,
        Duty::Retain,
        Duty::Backfill,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Duty::Sweep => "sweep",
            Duty::Expire => "expire",
            Duty::Backfill => "backfill",
            Duty::Prune => "prune",
            Duty::Reschedule => "reschedule",
            Duty::Partitions => "partitions",
            Duty::Retain => "retain",
            Duty::Sample => "sample",
            Duty::ThinSamples => "thin_samples",
        }
    }

    /// How often it is done, give or take a tenth.
    pub(crate) fn every(self) -> Duration {
        match self {
            Duty::Sweep | Duty::Expire => 10 * SECOND,
            Duty::Backfill => 30 * SECOND,
            Duty::Sample | Duty::Reschedule => MINUTE,
            Duty::Prune | Duty::Retain => 5 * MINUTE,
            Duty::ThinSamples => 10 * MINUTE,
            Duty::Partitions => 60 * MINUTE,
        }
    }

    /// For how long whoever took it is left alone with it, unless he says that he is still at it. Two at once do no
    /// harm: they only do work twice.
    pub(crate) const PATIENCE: Duration = MINUTE;

    /// Whether it is done for the whole database rather than for each namespace. Its row is in `default`.
    pub(crate) fn is_of_database(self) -> bool {
        self == Duty::Partitions
    }

    /// How much there was to do, and whether there is more that could not be done in one go.
    async fn once(self, queue: &Queue) -> Result<(usize, bool)> {
        let done = match self {
            Duty::Sweep => queue.sweep_once().await,
            Duty::Expire => queue.expire_once().await,
            Duty::Backfill => queue.backfill_once().await,
            Duty::Prune => queue.prune_once().await,
            Duty::Reschedule => queue.reschedule_once().await,
            Duty::Partitions => queue.partitions_once().await.map(|done| done.made + done.dropped + done.strays),
            Duty::Retain => {
                let done = queue.retain_once().await?;
                return Ok((done.deliveries + done.dead_letters + done.events, done.more));
            }
            Duty::Sample => queue.sample_once().await,
            Duty::ThinSamples => queue.thin_samples_once().await,
        };
        Ok((done?, false))
    }
}

impl FromStr for Duty {
    type Err = Error;

    fn from_str(name: &str) -> Result<Duty> {
        let all = Duty::QUICK.iter().chain(Duty::SLOW);
        let found = all.copied().find(|duty| duty.as_str() == name);
        found.ok_or_else(|| Error::invalid("duty", format!("'{name}' is not a duty")))
    }
}

/// A duty that was done, or tried, just now.
#[derive(Debug, Clone, PartialEq)]
pub struct DutyRun {
    /// Which.
    pub duty: Duty,
    /// How much there was to do: deliveries, rows, files.
    pub done: usize,
    /// How long it took.
    pub took: Duration,
    /// There is more to do than could be done in one go: it goes on soon.
    pub more: bool,
    /// Why it failed, if it did. It is tried again when its time comes.
    pub error: Option<Error>,
}

impl DutyRun {
    /// Jittered, so that what began together does not stay together.
    pub(crate) fn next_in(&self) -> Duration {
        let every = if self.more { SECOND } else { self.duty.every() };
        every.mul_f64(0.9 + 0.2 * fastrand::f64())
    }
}

/// What is known of a duty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DutyView {
    /// Which.
    pub duty: Duty,
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
    pub async fn maintain_once(&self) -> Result<Vec<DutyRun>> {
        let mut runs = self.do_due(Some(self.namespace()), Duty::QUICK).await?;
        runs.append(&mut self.do_due(Some(self.namespace()), Duty::SLOW).await?);
        Ok(runs)
    }

    /// What is known of this namespace's upkeep. That of the whole database is shown with `default`.
    pub async fn duties(&self) -> Result<Vec<DutyView>> {
        self.topology().await?;
        self.store().duties(self.namespace()).await
    }

    /// Does those of these duties that are due and that nobody else is at: of one namespace, or of all. One that fails
    /// does not keep the others from theirs.
    pub(crate) async fn do_due(&self, namespace: Option<&str>, duties: &[Duty]) -> Result<Vec<DutyRun>> {
        let mut due = self.store().due_duties(namespace, duties, self.now()).await?;
        due.sort_by_cached_key(|(namespace, duty)| order(namespace, *duty));
        let (mut runs, mut failed) = (Vec::new(), None);
        for of_one in due.chunk_by(|one, next| one.0 == next.0 && is_quick(one.1) && is_quick(next.1)) {
            let queue = self.in_namespace(&of_one[0].0)?;
            let duties: Vec<Duty> = of_one.iter().map(|(_, duty)| *duty).collect();
            match queue.take_and_do(&duties).await {
                Ok(mut done) => runs.append(&mut done),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(runs), Err)
    }

    async fn take_and_do(&self, duties: &[Duty]) -> Result<Vec<DutyRun>> {
        let worker_id = &*self.core().process;
        let taken = self.store().take_duties(self.namespace(), duties, worker_id, self.now()).await?;
        let mut runs = Vec::with_capacity(taken.len());
        for duty in taken {
            runs.push(self.do_one(duty).await);
        }
        if !runs.is_empty() {
            self.store().note_duties(self.namespace(), &runs, worker_id, self.now()).await?;
        }
        Ok(runs)
    }

    async fn do_one(&self, duty: Duty) -> DutyRun {
        let begun = Instant::now();
        let (namespace, name) = (self.namespace(), duty.as_str());
        let ((done, more), error) = match self.hold_while(duty, duty.once(self)).await {
            Ok(done) => (done, None),
            Err(error) => ((0, false), Some(error)),
        };
        let took = begun.elapsed();
        match &error {
            Some(error) => tracing::warn!(%error, namespace, duty = name, "upkeep failed"),
            // Samples are taken every minute, and change nothing.
            None if done > 0 && duty != Duty::Sample => tracing::info!(namespace, duty = name, done, ?took, "upkeep"),
            None => tracing::debug!(namespace, duty = name, ?took, "upkeep: nothing to do"),
        }
        let run = DutyRun { duty, done, took, more, error };
        self.core().meter.duty(namespace, &run, self.clock().now());
        run
    }

    /// Goes on holding the duty for as long as the work takes.
    async fn hold_while<T>(&self, duty: Duty, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(Duty::PATIENCE / 3, &mut work).await {
                Ok(done) => return done,
                Err(_) => {
                    let held = self.store().hold_duty(self.namespace(), duty, &self.core().process, self.now()).await;
                    if let Err(error) = held {
                        tracing::debug!(%error, duty = duty.as_str(), "could not hold a duty for longer");
                    }
                }
            }
        }
    }
}

/// Quick ones of one namespace together; of the others first each one's turn in all namespaces, then the next one's.
fn order(namespace: &str, duty: Duty) -> (usize, String, Duty) {
    let turn = Duty::SLOW.iter().position(|slow| *slow == duty);
    (turn.map_or(0, |turn| turn + 1), namespace.to_owned(), duty)
}

fn is_quick(duty: Duty) -> bool {
    Duty::QUICK.contains(&duty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duty_is_found_by_its_name() {
        for duty in Duty::QUICK.iter().chain(Duty::SLOW) {
            assert_eq!(duty.as_str().parse(), Ok(*duty));
            assert_eq!(serde_json::to_string(duty).unwrap(), format!("\"{}\"", duty.as_str()));
        }
        assert!("idle".parse::<Duty>().is_err());
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test(start_paused = true)]
    async fn a_duty_stays_held_while_the_work_goes_on() {
        let (clock, hand) = crate::Clock::test("2026-01-01T00:00:00Z".parse().unwrap());
        let queue = Queue::options("sqlite::memory:").clock(clock).open().await.unwrap();
        let take = async |worker_id: &str| {
            queue.store().take_duties("default", &[Duty::Prune], worker_id, queue.now()).await.unwrap()
        };
        assert_eq!(take(&queue.core().process).await, [Duty::Prune]);
        let work = async {
            hand.advance(Duty::PATIENCE - SECOND);
            tokio::time::sleep(Duty::PATIENCE / 2).await;
        };
        queue.hold_while(Duty::Prune, work).await;
        hand.advance(Duty::PATIENCE - SECOND);
        assert_eq!(take("other").await, []);
        hand.advance(SECOND);
        assert_eq!(take("other").await, [Duty::Prune]);
    }

    #[test]
    fn a_duty_comes_again_about_when_it_should() {
        for (more, every) in [(false, Duty::Retain.every()), (true, SECOND)] {
            let run = DutyRun { duty: Duty::Retain, done: 0, took: Duration::ZERO, more, error: None };
            assert!((0..1_000).all(|_| (every.mul_f64(0.9)..=every.mul_f64(1.1)).contains(&run.next_in())));
        }
    }
}
