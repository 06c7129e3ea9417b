//! Samples: what happened in each minute, kept for charts and thinned with age.
//!
//! Nothing is counted by reading history. Each process counts what it commits ([`counters`]) and adds that to the
//! table every few seconds; what is published in somebody else's transaction is counted in that transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Timestamp, after, from_micros};
use crate::error::{Error, Result};
use crate::event::delivery::Delivery;
use crate::observe::backlog::LiveCount;
use crate::observe::inspect::check_types;
use crate::queue::outcome::Attempt;
use crate::queue::{Core, Queue};
use crate::store::{DeliveryChange, PreparedEvent, PublishOutcome};
use crate::topology::Topology;

pub(crate) mod counter;
mod counters;
pub(crate) mod histogram;
mod points;
pub(crate) mod thin;

use counter::{Counter, Noted, end_of, first_wait, run_of, span_us};
pub(crate) use counters::Counters;
use points::too_many;
pub(crate) use points::{Points, Wanted};
pub use points::{Quantiles, Sample};

/// The finest that is kept.
pub(crate) const MINUTE_S: u32 = 60;
/// The longest step: as long as samples are kept.
const STEP_MAX: Duration = Duration::from_secs(400 * 24 * 3600);
/// How far back one looks who does not say.
const FROM_DEFAULT: Duration = Duration::from_secs(3600);
/// How many rows one transaction moves.
const BATCH: usize = counters::BATCH;
/// How long closing may take to write what was counted.
const LAST_WRITE_MAX: Duration = Duration::from_secs(5);

/// A sample as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SampleRow {
    pub span_s: u32,
    /// When the span begins.
    pub at: Timestamp,
    pub event_type: String,
    pub counter: Counter,
}

/// How much of a type is live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Depth {
    live: u64,
    /// Since when the first that is free and ready is so.
    ready_since: Option<Timestamp>,
}

impl Depth {
    fn add(&mut self, live: &LiveCount) {
        self.live += live.pending() + live.processing();
        self.ready_since = self.ready_since.into_iter().chain(live.ready_since).min();
    }

    fn into_row(self, event_type: String, at: Timestamp) -> SampleRow {
        let oldest_ms = self.ready_since.map_or(0, |since| span_us(since, at) / 1_000);
        let counter = Counter { depth: Some(self.live), oldest_ms: Some(oldest_ms), ..Counter::default() };
        SampleRow { span_s: MINUTE_S, at: begin_of(at, MINUTE_S), event_type, counter }
    }
}

/// When the span begins that an instant lies in. Spans begin at multiples of their length since 1970.
pub(crate) fn begin_of(at: Timestamp, span_s: u32) -> Timestamp {
    let (micros, span) = (at.timestamp_micros(), i64::from(span_s) * 1_000_000);
    from_micros(micros - micros.rem_euclid(span))
}

/// Which samples, and how they are put together; what is empty or `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct SampleFilter {
    /// From the step that this instant lies in; an hour before `until` if `None`.
    pub from: Option<Timestamp>,
    /// Before this instant, up to the end of the step that it lies in; up to now if `None`.
    pub until: Option<Timestamp>,
    /// How long each span is, in whole minutes; a minute if zero. Steps begin at multiples of this since 1970, in UTC.
    pub step: Duration,
    /// Of any of these types, by exact name or prefix ending in `*`.
    pub types: Vec<String>,
    /// One sample for each type, instead of one for all together.
    pub by_type: bool,
}

impl Queue {
    /// What happened, step by step, the earliest first. Steps in which nothing did are left out.
    ///
    /// Samples are for charts, not for accounting. A process that is killed takes with it what it counted in its last
    /// ten seconds, or since the database last answered; what another one counted is here up to ten seconds later. Where
    /// the connection is lost after the commit, or [`Queue::flush_samples_once`] is given up on its way, the counts of
    /// those seconds may be added twice. Quantiles are at most √2 times too large or too small, and waits and runs are
    /// measured by the clock of the database; only how long handlers in transactions ran is measured by the process, if
    /// that is longer.
    ///
    /// Minutes are kept for two days, ten minutes for two weeks and hours for 400 days: a step before that is as long as
    /// [`Sample::span_ms`] says. Errors name `step_ms` where there would be too many samples, and `from` where too many
    /// stored ones would have to be read: there is one for each type and minute, or longer span.
    pub async fn samples(&self, filter: SampleFilter) -> Result<Vec<Sample>> {
        self.topology().await?;
        let wanted = self.wanted(filter).await?;
        let counters = &self.core().counters;
        let _settled = counters.settled().await;
        let mut points = self.store().samples(self.namespace(), Points::new(wanted)).await?;
        for row in counters.of(self.namespace()) {
            points.add(row)?;
        }
        Ok(points.into_samples())
    }

    async fn wanted(&self, filter: SampleFilter) -> Result<Wanted> {
        check_types("types", &filter.types, self.limits())?;
        let step_s = step_s(filter.step)?;
        let until = match filter.until {
            Some(until) => until,
            // The step that has just begun is part of it.
            None => after(self.store().now(self.now()).await?, Duration::from_micros(1)),
        };
        let (from, until) = range(filter.from, until, step_s)?;
        let limits = self.limits();
        let points = span_us(from, until) / (u64::from(step_s) * 1_000_000);
        let points = usize::try_from(points).unwrap_or(usize::MAX);
        if points > limits.samples_max {
            return Err(too_many(points, limits.samples_max));
        }
        let (types, by_type) = (filter.types, filter.by_type);
        let (points_max, rows_max) = (limits.samples_max, limits.sample_rows_max);
        Ok(Wanted { from, until, step_s, types, by_type, points_max, rows_max })
    }

    /// Writes what this process has counted, in all namespaces; how many rows. This happens by itself ten seconds
    /// after something was counted, and in [`Queue::close`].
    pub async fn flush_samples_once(&self) -> Result<usize> {
        self.core().counters.write().await
    }

    /// Records how many deliveries are live and how old they are; how many samples. To be done once a minute, by one process:
    /// more often, or by several, does no harm.
    pub async fn sample_once(&self) -> Result<usize> {
        self.topology().await?;
        self.route_before_reading().await;
        let rows = self.depths().await?;
        for batch in rows.chunks(BATCH) {
            self.store().add_samples(self.namespace(), batch).await?;
        }
        Ok(rows.len())
    }

    /// How much of each type is live: of those of which something is, or was lately.
    async fn depths(&self) -> Result<Vec<SampleRow>> {
        let mut depths: BTreeMap<String, Depth> = BTreeMap::new();
        for live in self.store().backlog(self.namespace(), self.now()).await? {
            depths.entry(live.event_type.clone()).or_default().add(&live);
        }
        depths.retain(|_, depth| depth.live > 0);
        for event_type in self.store().sampled_lately(self.namespace(), self.now()).await? {
            depths.entry(event_type).or_default();
        }
        let at = self.store().now(self.now()).await?;
        Ok(depths.into_iter().map(|(event_type, depth)| depth.into_row(event_type, at)).collect())
    }

    /// Puts old samples together into longer spans, and deletes the oldest; how many rows that concerned.
    pub async fn thin_samples_once(&self) -> Result<usize> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let mut thinned = 0;
        for level in thin::LEVELS {
            loop {
                let batch = self.store().thin_samples(self.namespace(), &level, level.before(now), BATCH).await?;
                thinned += batch;
                if batch < BATCH {
                    break;
                }
            }
        }
        Ok(thinned)
    }
}

fn step_s(step: Duration) -> Result<u32> {
    if step.is_zero() {
        return Ok(MINUTE_S);
    }
    let (seconds, minute) = (step.as_secs(), u64::from(MINUTE_S));
    if step > STEP_MAX || step.subsec_nanos() > 0 || seconds % minute > 0 {
        return Err(Error::invalid("step_ms", "must be whole minutes, from 60000 to 34560000000, which is 400 days"));
    }
    Ok(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// The steps that these instants lie in; no database has samples from outside the years 1970 to 9999.
fn range(from: Option<Timestamp>, until: Timestamp, step_s: u32) -> Result<(Timestamp, Timestamp)> {
    let (first, last) = (from_micros(0), from_micros(LAST_US));
    let from = from.unwrap_or_else(|| from_micros(until.timestamp_micros().saturating_sub(FROM_DEFAULT_US)));
    if from >= until {
        return Err(Error::invalid("from", "must be before 'until'"));
    }
    let (from, until) = (from.clamp(first, last), until.clamp(first, last));
    let (from, last) = (begin_of(from, step_s), begin_of(until, step_s));
    let until = if last < until { after(last, Duration::from_secs(u64::from(step_s))) } else { last };
    Ok((from, until))
}

const FROM_DEFAULT_US: i64 = FROM_DEFAULT.as_micros() as i64;
/// The end of the year 9999.
const LAST_US: i64 = 253_402_300_800_000_000;

impl Core {
    /// Counts events that were stored just now.
    pub(crate) fn count_published<'a>(
        &self,
        namespace: &str,
        new: impl Iterator<Item = (&'a PreparedEvent, &'a PublishOutcome)> + Clone,
    ) {
        self.metrics.published(namespace, new.clone());
        self.metrics.dropped(namespace, 0);
        let noted = new.map(|(new, stored)| (new.event.event_type.as_str(), stored.created_at, Noted::Published));
        self.counters.count(namespace, noted);
    }

    pub(crate) fn count_claimed(&self, topology: &Topology, namespace: &str, subscription: &str, taken: &[Delivery]) {
        let Some(of) = topology.subscription(subscription) else { return };
        let waited = taken.iter().map(|delivery| (delivery, first_wait(delivery, of)));
        self.metrics.claimed(namespace, subscription, waited.clone());
        let noted = waited.filter_map(|(delivery, wait_us)| {
            Some((delivery.event.event_type.as_str(), delivery.picked_at, Noted::Claimed { wait_us: wait_us? }))
        });
        self.counters.count(namespace, noted);
    }

    /// Counts changes that were applied, each with the type of its event.
    pub(crate) fn count_changed(&self, namespace: &str, applied: &[(&str, &DeliveryChange, &Attempt)]) {
        let ran = applied.iter().map(|(event_type, change, attempt)| {
            let run_us = run_of(change, attempt.finished_at);
            (*event_type, *change, *attempt, run_us)
        });
        self.metrics
            .changed(namespace, ran.clone().map(|(event_type, change, _, run_us)| (event_type, change, run_us)));
        let noted = ran.filter_map(|(event_type, change, attempt, run_us)| {
            Some((event_type, attempt.finished_at, Noted::Ended(end_of(change)?, run_us)))
        });
        self.counters.count(namespace, noted);
    }

    /// Writes what was counted, for the last time.
    pub(crate) async fn close_counters(&self) {
        self.counters.close();
        match tokio::time::timeout(LAST_WRITE_MAX, self.counters.write()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last samples are lost"),
            Err(_) => tracing::warn!("the last samples are lost: the database did not answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn spans_begin_at_multiples_of_their_length() {
        let table = [
            ("2025-12-24T10:37:12.5Z", 60, "2025-12-24T10:37:00Z"),
            ("2025-12-24T10:37:12.5Z", 600, "2025-12-24T10:30:00Z"),
            ("2025-12-24T10:37:12.5Z", 3600, "2025-12-24T10:00:00Z"),
            ("2025-12-24T10:37:12.5Z", 86_400, "2025-12-24T00:00:00Z"),
            ("2025-12-24T10:37:00Z", 60, "2025-12-24T10:37:00Z"),
            ("1969-12-31T23:59:59.9Z", 60, "1969-12-31T23:59:00Z"),
        ];
        for (instant, span_s, begin) in table {
            assert_eq!(begin_of(at(instant), span_s), at(begin), "{instant} {span_s}");
        }
    }

    #[test]
    fn a_range_is_made_of_whole_steps() {
        let until = at("2025-12-24T10:37:12Z");
        let hour = range(None, until, 60).unwrap();
        assert_eq!(hour, (at("2025-12-24T09:37:00Z"), at("2025-12-24T10:38:00Z")));
        let tens = range(Some(at("2025-12-24T10:00:00Z")), until, 600).unwrap();
        assert_eq!(tens, (at("2025-12-24T10:00:00Z"), at("2025-12-24T10:40:00Z")));
        let exact = range(Some(at("2025-12-24T10:00:00Z")), at("2025-12-24T10:10:00Z"), 600).unwrap();
        assert_eq!(exact, (at("2025-12-24T10:00:00Z"), at("2025-12-24T10:10:00Z")));
        assert!(range(Some(until), until, 60).is_err());
        let (from, until) = range(Some(Timestamp::MIN_UTC), Timestamp::MAX_UTC, 60).unwrap();
        assert_eq!((from, until), (at("1970-01-01T00:00:00Z"), at("+10000-01-01T00:00:00Z")));
    }

    #[test]
    fn steps_are_whole_minutes() {
        let seconds = Duration::from_secs;
        assert_eq!((step_s(Duration::ZERO), step_s(seconds(60)), step_s(STEP_MAX)), (Ok(60), Ok(60), Ok(34_560_000)));
        for bad in
            [seconds(1), seconds(61), STEP_MAX + seconds(60), seconds(60) + Duration::from_nanos(1), Duration::MAX]
        {
            assert!(step_s(bad).is_err(), "{bad:?}");
        }
    }
}
