//! Samples: counts and quantiles per minute and event type, kept for charts and merged into longer spans with age.
//!
//! Samples never read the history. Each process counts what it commits ([`counters`]) and adds that to the table
//! every few seconds. Events published in a user's transaction are counted in that transaction.

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
mod series;
pub(crate) mod thin;

use counter::{CountedEvent, Counter, elapsed_us, finish_kind, first_wait_us, handling_us};
pub(crate) use counters::Counters;
use series::too_many_points;
pub use series::{Quantiles, Sample};
pub(crate) use series::{SampleQuery, SampleSeries};

/// The shortest span that is stored.
pub(crate) const MINUTE_S: u32 = 60;
/// The longest step: as long as samples are kept.
const STEP_MAX: Duration = Duration::from_secs(400 * 24 * 3600);
/// The default length of a query.
const RANGE_DEFAULT: Duration = Duration::from_secs(3600);
/// The most rows per transaction.
const BATCH: usize = counters::BATCH;
/// How long closing waits for the last write.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A stored sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SampleRow {
    pub span_s: u32,
    /// When the span begins.
    pub at: Timestamp,
    pub event_type: String,
    pub counter: Counter,
}

/// The pending and processing deliveries of an event type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TypeDepth {
    live: u64,
    /// When the oldest ready delivery became ready.
    ready_since: Option<Timestamp>,
}

impl TypeDepth {
    fn add(&mut self, live: &LiveCount) {
        self.live += live.pending() + live.processing();
        self.ready_since = self.ready_since.into_iter().chain(live.ready_since).min();
    }

    fn into_row(self, event_type: String, at: Timestamp) -> SampleRow {
        let oldest_ms = self.ready_since.map_or(0, |since| elapsed_us(since, at) / 1_000);
        let counter = Counter { depth: Some(self.live), oldest_ms: Some(oldest_ms), ..Counter::default() };
        SampleRow { span_s: MINUTE_S, at: span_start(at, MINUTE_S), event_type, counter }
    }
}

/// The beginning of the span that contains `at`. Spans begin at multiples of their length since 1970.
pub(crate) fn span_start(at: Timestamp, span_s: u32) -> Timestamp {
    let (micros, span) = (at.timestamp_micros(), i64::from(span_s) * 1_000_000);
    from_micros(micros - micros.rem_euclid(span))
}

/// Which samples to return, and how to combine them. Empty and `None` fields do not filter.
#[derive(Debug, Clone, Default)]
pub struct SampleFilter {
    /// Start of the range, rounded down to a step. An hour before `until` if `None`.
    pub from: Option<Timestamp>,
    /// End of the range, rounded up to a step. Now if `None`.
    pub until: Option<Timestamp>,
    /// The length of a step in whole minutes; a minute if zero. Steps begin at multiples of this since 1970, in UTC.
    pub step: Duration,
    /// Only these types, by exact name or by prefix ending in `*`.
    pub types: Vec<String>,
    /// One sample per type, instead of one for all types together.
    pub by_type: bool,
}

impl Queue {
    /// Returns the samples of a range, step by step, the earliest first. Steps without any activity are left out.
    ///
    /// Samples are for charts, not for accounting. A killed process loses the counts of its last ten seconds, or of
    /// the time since the database last answered. The counts of other processes appear up to ten seconds late. If the
    /// connection is lost after the commit, or the future of [`Queue::flush_samples_once`] is dropped, the counts of
    /// those seconds may be added twice. Quantiles are at most √2 times too large or too small. Wait and handling
    /// times are measured by the clock of the database; handlers that run in a transaction are also measured by the
    /// process, and the longer time counts.
    ///
    /// Minutes are kept for two days, ten minutes for two weeks and hours for 400 days: a step before that is as long
    /// as [`Sample::span_ms`] says. Errors name `step_ms` if there would be too many samples, and `from` if too many
    /// stored samples would have to be read: there is one per type and stored span.
    pub async fn samples(&self, filter: SampleFilter) -> Result<Vec<Sample>> {
        self.topology().await?;
        let query = self.sample_query(filter).await?;
        let counters = &self.core().counters;
        let _writes_paused = counters.pause_writes().await;
        let mut series = self.store().samples(self.namespace(), SampleSeries::new(query)).await?;
        for row in counters.unwritten(self.namespace()) {
            series.add(row)?;
        }
        Ok(series.into_samples())
    }

    async fn sample_query(&self, filter: SampleFilter) -> Result<SampleQuery> {
        check_types("types", &filter.types, self.limits())?;
        let step_s = step_s(filter.step)?;
        let until = match filter.until {
            Some(until) => until,
            // Include the step that has just begun.
            None => after(self.store().now(self.now()).await?, Duration::from_micros(1)),
        };
        let (from, until) = whole_steps(filter.from, until, step_s)?;
        let limits = self.limits();
        let points = elapsed_us(from, until) / (u64::from(step_s) * 1_000_000);
        let points = usize::try_from(points).unwrap_or(usize::MAX);
        if points > limits.samples_max {
            return Err(too_many_points(points, limits.samples_max));
        }
        let (types, by_type) = (filter.types, filter.by_type);
        let (points_max, rows_max) = (limits.samples_max, limits.sample_rows_max);
        Ok(SampleQuery { from, until, step_s, types, by_type, points_max, rows_max })
    }

    /// Writes the counts of this process, in all namespaces, and returns the number of rows. This happens
    /// automatically ten seconds after something was counted, and in [`Queue::close`].
    pub async fn flush_samples_once(&self) -> Result<usize> {
        self.core().counters.write().await
    }

    /// Records the number of pending and processing deliveries and the age of the oldest ready one, per type; returns
    /// the number of samples. Run once a minute, by one process; running it more often or in several processes does
    /// no harm.
    pub async fn sample_once(&self) -> Result<usize> {
        self.topology().await?;
        self.route_before_reading().await;
        let rows = self.measure_depths().await?;
        for batch in rows.chunks(BATCH) {
            self.store().add_samples(self.namespace(), batch).await?;
        }
        Ok(rows.len())
    }

    /// The depth of each type that has pending or processing deliveries, or had samples recently.
    async fn measure_depths(&self) -> Result<Vec<SampleRow>> {
        let mut depths: BTreeMap<String, TypeDepth> = BTreeMap::new();
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

    /// Merges old samples into longer spans and deletes the oldest; returns the number of rows changed.
    pub async fn thin_samples_once(&self) -> Result<usize> {
        self.topology().await?;
        let now = self.store().now(self.now()).await?;
        let mut thinned = 0;
        for level in thin::THINNING_LEVELS {
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

/// The range extended to whole steps, within the years 1970 to 9999: no database has samples outside them.
fn whole_steps(from: Option<Timestamp>, until: Timestamp, step_s: u32) -> Result<(Timestamp, Timestamp)> {
    let (first, last) = (from_micros(0), from_micros(LAST_US));
    let from = from.unwrap_or_else(|| from_micros(until.timestamp_micros().saturating_sub(RANGE_DEFAULT_US)));
    if from >= until {
        return Err(Error::invalid("from", "must be before 'until'"));
    }
    let (from, until) = (from.clamp(first, last), until.clamp(first, last));
    let (from, last) = (span_start(from, step_s), span_start(until, step_s));
    let until = if last < until { after(last, Duration::from_secs(u64::from(step_s))) } else { last };
    Ok((from, until))
}

const RANGE_DEFAULT_US: i64 = RANGE_DEFAULT.as_micros() as i64;
/// The end of the year 9999.
const LAST_US: i64 = 253_402_300_800_000_000;

impl Core {
    /// Counts events that were just committed.
    pub(crate) fn count_published<'a>(
        &self,
        namespace: &str,
        new: impl Iterator<Item = (&'a PreparedEvent, &'a PublishOutcome)> + Clone,
    ) {
        self.metrics.published(namespace, new.clone());
        self.metrics.dropped(namespace, 0);
        let counted =
            new.map(|(new, stored)| (new.event.event_type.as_str(), stored.created_at, CountedEvent::Published));
        self.counters.count(namespace, counted);
    }

    pub(crate) fn count_claimed(&self, topology: &Topology, namespace: &str, subscription: &str, claimed: &[Delivery]) {
        let Some(found) = topology.subscription(subscription) else { return };
        let waited = claimed.iter().map(|delivery| (delivery, first_wait_us(delivery, found)));
        self.metrics.claimed(namespace, subscription, waited.clone());
        let counted = waited.filter_map(|(delivery, wait_us)| {
            Some((delivery.event.event_type.as_str(), delivery.picked_at, CountedEvent::Claimed { wait_us: wait_us? }))
        });
        self.counters.count(namespace, counted);
    }

    /// Counts applied changes, each with the type of its event.
    pub(crate) fn count_changed(&self, namespace: &str, applied: &[(&str, &DeliveryChange, &Attempt)]) {
        let timed = applied.iter().map(|(event_type, change, attempt)| {
            let run_us = handling_us(change, attempt.finished_at);
            (*event_type, *change, *attempt, run_us)
        });
        self.metrics
            .changed(namespace, timed.clone().map(|(event_type, change, _, run_us)| (event_type, change, run_us)));
        let counted = timed.filter_map(|(event_type, change, attempt, run_us)| {
            Some((event_type, attempt.finished_at, CountedEvent::Finished(finish_kind(change)?, run_us)))
        });
        self.counters.count(namespace, counted);
    }

    /// Stops counting and writes the remaining counts.
    pub(crate) async fn close_counters(&self) {
        self.counters.close();
        match tokio::time::timeout(FINAL_WRITE_TIMEOUT, self.counters.write()).await {
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
    fn spans_start_at_multiples_of_their_length() {
        let table = [
            ("2025-12-24T10:37:12.5Z", 60, "2025-12-24T10:37:00Z"),
            ("2025-12-24T10:37:12.5Z", 600, "2025-12-24T10:30:00Z"),
            ("2025-12-24T10:37:12.5Z", 3600, "2025-12-24T10:00:00Z"),
            ("2025-12-24T10:37:12.5Z", 86_400, "2025-12-24T00:00:00Z"),
            ("2025-12-24T10:37:00Z", 60, "2025-12-24T10:37:00Z"),
            ("1969-12-31T23:59:59.9Z", 60, "1969-12-31T23:59:00Z"),
        ];
        for (timestamp, span_s, start) in table {
            assert_eq!(span_start(at(timestamp), span_s), at(start), "{timestamp} {span_s}");
        }
    }

    #[test]
    fn range_is_extended_to_whole_steps() {
        let until = at("2025-12-24T10:37:12Z");
        let hour = whole_steps(None, until, 60).unwrap();
        assert_eq!(hour, (at("2025-12-24T09:37:00Z"), at("2025-12-24T10:38:00Z")));
        let tens = whole_steps(Some(at("2025-12-24T10:00:00Z")), until, 600).unwrap();
        assert_eq!(tens, (at("2025-12-24T10:00:00Z"), at("2025-12-24T10:40:00Z")));
        let exact = whole_steps(Some(at("2025-12-24T10:00:00Z")), at("2025-12-24T10:10:00Z"), 600).unwrap();
        assert_eq!(exact, (at("2025-12-24T10:00:00Z"), at("2025-12-24T10:10:00Z")));
        assert!(whole_steps(Some(until), until, 60).is_err());
        let (from, until) = whole_steps(Some(Timestamp::MIN_UTC), Timestamp::MAX_UTC, 60).unwrap();
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
