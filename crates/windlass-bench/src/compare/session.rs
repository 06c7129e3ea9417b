//! One measurement of one system: the requests to its adapter and the resulting figures.

use std::time::Duration;

use super::adapter_process::Adapter;
use super::environment::{Environment, ServerCounters};
use super::figures::{Figure, Figures};
use super::protocol::{Delays, Drain, Elapsed, Latency, PerSecondCounts, Publish, Request, Steady};
use super::sizes::Scale;
use super::vacuum_blocker::block_vacuum;
use super::workloads::{Backlog, PLAIN, Rate, Steps, VacuumBlocker};
use crate::AnyError;
use crate::statistics::{mean, percentile, window_median};

/// The default payload size.
const PAYLOAD_BYTES: usize = 200;
/// The target duration of a publish call, and of a drain.
const PUBLISH_SECONDS: f64 = 2.0;
const DRAIN_SECONDS: f64 = 10.0;
/// A fast system publishes up to this multiple of the usual number of events, to fill that time.
const PUBLISH_SCALE_MAX: usize = 4;
const FIRST_PUBLISH: usize = 200;
const FIRST_DRAIN: usize = 50;
const STEADY: Steady = Steady { seconds: 0, batch: 100, publishers: 2, bytes: PAYLOAD_BYTES };
/// Seconds before and after vacuum is blocked.
const WARM_UP: u64 = 30;
const RECOVERY: u64 = 20;
/// Seconds compared at the beginning and the end, by their median: a disk may stall for a second.
const WINDOW: usize = 10;

pub struct Session {
    pub adapter: Adapter,
    pub environment: Environment,
    pub scale: Scale,
}

impl Session {
    /// `max_rate` is the highest rate that the system has reached so far, if known.
    pub async fn measure(&mut self, steps: Steps, max_rate: Option<f64>) -> Result<Figures, AnyError> {
        match steps {
            Steps::Publish { callers, batch, events } => self.publish(callers, batch, PAYLOAD_BYTES, events).await,
            Steps::Drain(backlog) => self.drain(backlog).await,
            Steps::Payload { bytes, events } => self.payload(bytes, events).await,
            Steps::Steady { seconds } => self.steady(seconds).await,
            Steps::Latency { rate: Rate::PerSecond(rate), seconds } => self.latency(rate, seconds).await,
            Steps::Latency { rate: Rate::ShareOfMax(share), seconds } => {
                let max_rate = max_rate.ok_or("neither steady nor publish-16 was measured before")?;
                self.latency(((max_rate * share) as u64).max(1), seconds).await
            }
            Steps::Hold { blocker, seconds } => self.hold(blocker, seconds).await,
        }
    }

    /// Publishes with increasing numbers of events until a call takes long enough; that call is the result.
    async fn publish(
        &mut self,
        callers: usize,
        batch: usize,
        bytes: usize,
        events: usize,
    ) -> Result<Figures, AnyError> {
        let aim = self.scale.aim(PUBLISH_SECONDS, events * PUBLISH_SCALE_MAX);
        let mut events = FIRST_PUBLISH.max(2 * batch).max(callers);
        loop {
            let before = self.environment.counters().await?;
            let publish = Publish { events, callers, batch, bytes, tag_sets: 0, mixed: false, groups: 0 };
            let took: Elapsed = self.adapter.request(&Request::Publish(publish), Duration::ZERO).await?;
            if let Some(next) = aim.next(events, took.seconds) {
                events = next;
                continue;
            }
            let mut figures = self.costs(before, events).await?;
            figures.insert(Figure::Rate, events as f64 / took.seconds);
            return Ok(figures);
        }
    }

    async fn costs(&self, before: Option<ServerCounters>, events: usize) -> Result<Figures, AnyError> {
        let after = self.environment.counters().await?;
        Ok(before.zip(after).map(|(before, after)| after.per_event(before, events)).unwrap_or_default())
    }

    async fn drain(&mut self, backlog: Backlog) -> Result<Figures, AnyError> {
        if backlog.waiting > 0 {
            self.fill(self.scale.events(backlog.waiting), PAYLOAD_BYTES, &backlog).await?;
        }
        self.drain_of(&backlog, PAYLOAD_BYTES).await
    }

    /// Drains increasing numbers of events until a drain takes long enough; that drain is the result.
    async fn drain_of(&mut self, backlog: &Backlog, bytes: usize) -> Result<Figures, AnyError> {
        let aim = self.scale.aim(DRAIN_SECONDS, backlog.events);
        let mut events = FIRST_DRAIN;
        loop {
            if backlog.waiting == 0 {
                self.fill(events, bytes, backlog).await?;
            }
            let before = self.environment.counters().await?;
            let drain = Drain { events, fail_percent: backlog.fail_percent };
            let took: Elapsed = self.adapter.request(&Request::Drain(drain), Duration::ZERO).await?;
            if let Some(next) = aim.next(events, took.seconds) {
                events = next;
                continue;
            }
            let mut figures = self.costs(before, events).await?;
            figures.insert(Figure::Rate, (events * backlog.subscriptions) as f64 / took.seconds);
            return Ok(figures);
        }
    }

    /// Publishes in large batches of up to 1,000 events or about 2 MB.
    async fn fill(&mut self, events: usize, bytes: usize, backlog: &Backlog) -> Result<(), AnyError> {
        let batch = (2_000_000 / bytes).clamp(1, 1_000);
        let Backlog { tag_sets, mixed, groups, .. } = *backlog;
        let publish = Publish { events, callers: 4, batch, bytes, tag_sets, mixed, groups };
        self.adapter.request::<Elapsed>(&Request::Publish(publish), Duration::from_secs(600)).await.map(drop)
    }

    async fn payload(&mut self, bytes: usize, events: usize) -> Result<Figures, AnyError> {
        let backlog = Backlog { events, ..PLAIN };
        let mut figures = self.drain_of(&backlog, bytes).await?;
        let published = self.publish(4, 100, bytes, events).await?;
        figures.extend(published.get(&Figure::Rate).map(|rate| (Figure::Published, *rate)));
        Ok(figures)
    }

    async fn steady(&mut self, seconds: u64) -> Result<Figures, AnyError> {
        let seconds = self.scale.seconds(seconds);
        let steady = Request::Steady(Steady { seconds, ..STEADY });
        let took: PerSecondCounts = self.adapter.request(&steady, Duration::from_secs(seconds)).await?;
        Ok(Figures::from([(Figure::Rate, mean(&took.finished, 1, took.finished.len()))]))
    }

    async fn latency(&mut self, per_second: u64, seconds: u64) -> Result<Figures, AnyError> {
        let seconds = self.scale.seconds(seconds);
        let latency = Request::Latency(Latency { per_second, seconds, bytes: PAYLOAD_BYTES });
        let Delays { mut micros } = self.adapter.request(&latency, Duration::from_secs(seconds)).await?;
        micros.sort_unstable();
        let ms = |percent| percentile(&micros, percent) as f64 / 1000.0;
        Ok(Figures::from([
            (Figure::Offered, per_second as f64),
            (Figure::P50Ms, ms(50)),
            (Figure::P95Ms, ms(95)),
            (Figure::P99Ms, ms(99)),
            (Figure::MaxMs, ms(100)),
        ]))
    }

    async fn hold(&mut self, blocker: VacuumBlocker, seconds: u64) -> Result<Figures, AnyError> {
        let held = self.scale.hold_seconds.unwrap_or_else(|| self.scale.seconds(seconds)).max(2 * WINDOW as u64);
        let total = WARM_UP + held + RECOVERY;
        let steady = Request::Steady(Steady { seconds: total, ..STEADY });
        let url = self.environment.url.clone();
        let holding = async {
            tokio::time::sleep(Duration::from_secs(WARM_UP)).await;
            block_vacuum(blocker, &url, Duration::from_secs(held)).await
        };
        let steady = self.adapter.request::<PerSecondCounts>(&steady, Duration::from_secs(total));
        let (took, ()) = tokio::try_join!(steady, holding)?;
        Ok(held_figures(&took.finished, WARM_UP as usize, held as usize))
    }
}

fn held_figures(finished: &[u64], from: usize, held: usize) -> Figures {
    let end = from + held;
    let (first, last) = (window_median(finished, from, from + WINDOW), window_median(finished, end - WINDOW, end));
    let after = window_median(finished, finished.len().saturating_sub(WINDOW).max(end), finished.len());
    let share = |rate: f64| if first > 0.0 { rate / first } else { 0.0 };
    Figures::from([
        (Figure::First, first),
        (Figure::Last, last),
        (Figure::After, after),
        (Figure::Kept, share(last)),
        (Figure::Recovered, share(after)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_at_both_ends_of_the_blocked_time() {
        let finished: Vec<u64> =
            [vec![1; 5], vec![100; 10], vec![7; 20], vec![50; 10], vec![60; 10], vec![80; 10]].concat();
        let figures = held_figures(&finished, 5, 40);
        let of = |figure| figures[&figure];
        assert_eq!([of(Figure::First), of(Figure::Last), of(Figure::After)], [100.0, 50.0, 80.0]);
        assert_eq!([of(Figure::Kept), of(Figure::Recovered)], [0.5, 0.8]);
    }
}
