//! One system at one measurement: what it is asked, and the figures that follow.

use std::time::Duration;

use super::ask::Adapter;
use super::figures::{Figure, Figures};
use super::hold::hold;
use super::place::{Home, Meter};
use super::protocol::{Delays, Drain, Latency, Publish, Request, Seconds, Steady, Took};
use super::sizes::Scale;
use super::workloads::{Backlog, Holder, PLAIN, Rate, Steps};
use crate::AnyError;
use crate::statistics::{mean, middle, percentile};

/// Of a payload, where the workload is not about that.
const BYTES: usize = 200;
/// How long a call that publishes shall take, and how long a drain may.
const PUBLISH_SECONDS: f64 = 2.0;
const DRAIN_SECONDS: f64 = 10.0;
/// A fast system publishes so many times the usual number, to fill that time.
const PUBLISH_MOST: usize = 4;
const FIRST_PUBLISH: usize = 200;
const FIRST_DRAIN: usize = 50;
const STEADY: Steady = Steady { seconds: 0, batch: 100, publishers: 2, bytes: BYTES };
/// Around the time that something is held: beforehand, and for the recovery.
const WARM_UP: u64 = 30;
const RECOVERY: u64 = 20;
/// What is compared at either end of that time, by the second in the middle: a disk stands still for one now and then.
const WINDOW: usize = 10;

pub struct Session {
    pub adapter: Adapter,
    pub home: Home,
    pub scale: Scale,
}

impl Session {
    /// `most`: the most events per second that the system has reached so far, if that is known.
    pub async fn take(&mut self, steps: Steps, most: Option<f64>) -> Result<Figures, AnyError> {
        match steps {
            Steps::Publish { callers, batch, events } => self.publish(callers, batch, BYTES, events).await,
            Steps::Drain(backlog) => self.drain(backlog).await,
            Steps::Payload { bytes, events } => self.payload(bytes, events).await,
            Steps::Steady { seconds } => self.steady(seconds).await,
            Steps::Latency { rate: Rate::PerSecond(rate), seconds } => self.latency(rate, seconds).await,
            Steps::Latency { rate: Rate::OfMost(share), seconds } => {
                let most = most.ok_or("neither steady nor publish-16 was measured before")?;
                self.latency(((most * share) as u64).max(1), seconds).await
            }
            Steps::Hold { holder, seconds } => self.hold(holder, seconds).await,
        }
    }

    /// Calls with more and more events, until one takes long enough: that one counts.
    async fn publish(
        &mut self,
        callers: usize,
        batch: usize,
        bytes: usize,
        events: usize,
    ) -> Result<Figures, AnyError> {
        let aim = self.scale.aim(PUBLISH_SECONDS, events * PUBLISH_MOST);
        let mut events = FIRST_PUBLISH.max(2 * batch).max(callers);
        loop {
            let before = self.home.meter().await?;
            let publish = Publish { events, callers, batch, bytes, tag_sets: 0, mixed: false, groups: 0 };
            let took: Took = self.adapter.ask(&Request::Publish(publish), Duration::ZERO).await?;
            if let Some(next) = aim.next(events, took.seconds) {
                events = next;
                continue;
            }
            let mut figures = self.costs(before, events).await?;
            figures.insert(Figure::Rate, events as f64 / took.seconds);
            return Ok(figures);
        }
    }

    async fn costs(&self, before: Option<Meter>, events: usize) -> Result<Figures, AnyError> {
        let after = self.home.meter().await?;
        Ok(before.zip(after).map(|(before, after)| after.per_event(before, events)).unwrap_or_default())
    }

    async fn drain(&mut self, backlog: Backlog) -> Result<Figures, AnyError> {
        if backlog.waiting > 0 {
            self.fill(self.scale.events(backlog.waiting), BYTES, &backlog).await?;
        }
        self.drain_of(&backlog, BYTES).await
    }

    /// Drains more and more, until a drain takes long enough: that one counts.
    async fn drain_of(&mut self, backlog: &Backlog, bytes: usize) -> Result<Figures, AnyError> {
        let aim = self.scale.aim(DRAIN_SECONDS, backlog.events);
        let mut events = FIRST_DRAIN;
        loop {
            if backlog.waiting == 0 {
                self.fill(events, bytes, backlog).await?;
            }
            let before = self.home.meter().await?;
            let drain = Drain { events, fail_percent: backlog.fail_percent };
            let took: Took = self.adapter.ask(&Request::Drain(drain), Duration::ZERO).await?;
            if let Some(next) = aim.next(events, took.seconds) {
                events = next;
                continue;
            }
            let mut figures = self.costs(before, events).await?;
            figures.insert(Figure::Rate, (events * backlog.subscriptions) as f64 / took.seconds);
            return Ok(figures);
        }
    }

    /// In as large batches as one may, up to 1,000 or about 2 MB.
    async fn fill(&mut self, events: usize, bytes: usize, backlog: &Backlog) -> Result<(), AnyError> {
        let batch = (2_000_000 / bytes).clamp(1, 1_000);
        let Backlog { tag_sets, mixed, groups, .. } = *backlog;
        let publish = Publish { events, callers: 4, batch, bytes, tag_sets, mixed, groups };
        self.adapter.ask::<Took>(&Request::Publish(publish), Duration::from_secs(600)).await.map(drop)
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
        let took: Seconds = self.adapter.ask(&steady, Duration::from_secs(seconds)).await?;
        Ok(Figures::from([(Figure::Rate, mean(&took.finished, 1, took.finished.len()))]))
    }

    async fn latency(&mut self, per_second: u64, seconds: u64) -> Result<Figures, AnyError> {
        let seconds = self.scale.seconds(seconds);
        let latency = Request::Latency(Latency { per_second, seconds, bytes: BYTES });
        let Delays { mut micros } = self.adapter.ask(&latency, Duration::from_secs(seconds)).await?;
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

    async fn hold(&mut self, holder: Holder, seconds: u64) -> Result<Figures, AnyError> {
        let held = self.scale.hold_seconds.unwrap_or_else(|| self.scale.seconds(seconds)).max(2 * WINDOW as u64);
        let total = WARM_UP + held + RECOVERY;
        let steady = Request::Steady(Steady { seconds: total, ..STEADY });
        let url = self.home.url.clone();
        let holding = async {
            tokio::time::sleep(Duration::from_secs(WARM_UP)).await;
            hold(holder, &url, Duration::from_secs(held)).await
        };
        let steady = self.adapter.ask::<Seconds>(&steady, Duration::from_secs(total));
        let (took, ()) = tokio::try_join!(steady, holding)?;
        Ok(held_figures(&took.finished, WARM_UP as usize, held as usize))
    }
}

fn held_figures(finished: &[u64], from: usize, held: usize) -> Figures {
    let end = from + held;
    let (first, last) = (middle(finished, from, from + WINDOW), middle(finished, end - WINDOW, end));
    let after = middle(finished, finished.len().saturating_sub(WINDOW).max(end), finished.len());
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
    fn windows_lie_at_both_ends_of_the_held_time() {
        let finished: Vec<u64> =
            [vec![1; 5], vec![100; 10], vec![7; 20], vec![50; 10], vec![60; 10], vec![80; 10]].concat();
        let figures = held_figures(&finished, 5, 40);
        let of = |figure| figures[&figure];
        assert_eq!([of(Figure::First), of(Figure::Last), of(Figure::After)], [100.0, 50.0, 80.0]);
        assert_eq!([of(Figure::Kept), of(Figure::Recovered)], [0.5, 0.8]);
    }
}
