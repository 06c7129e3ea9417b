//! Collects and caches the data of the overview.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use windlass::{Backlog, DeadLetterFilter, NodeStatus, Queue, Result, Sample, SampleFilter, StuckDelivery, Timestamp};

use super::shared_cache::SharedCache;
use crate::error::ApiError;

/// The time range of the charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum TimeRange {
    #[default]
    Hour,
    SixHours,
    Day,
    Week,
}

impl TimeRange {
    pub const ALL: [TimeRange; 4] = [TimeRange::Hour, TimeRange::SixHours, TimeRange::Day, TimeRange::Week];

    pub fn name(self) -> &'static str {
        match self {
            TimeRange::Hour => "1h",
            TimeRange::SixHours => "6h",
            TimeRange::Day => "24h",
            TimeRange::Week => "7d",
        }
    }

    pub fn parse(name: &str) -> Result<TimeRange, ApiError> {
        let found = TimeRange::ALL.into_iter().find(|range| range.name() == name);
        found.ok_or_else(|| ApiError::invalid("range", "must be one of 1h, 6h, 24h, 7d"))
    }

    /// The length of a step in seconds, and the number of steps.
    pub fn steps(self) -> (u32, usize) {
        match self {
            TimeRange::Hour => (60, 60),
            TimeRange::SixHours => (300, 72),
            TimeRange::Day => (600, 144),
            TimeRange::Week => (3_600, 168),
        }
    }
}

/// The current state and recent activity of a namespace.
pub(super) struct OverviewData {
    /// When the data was collected.
    pub at: Timestamp,
    pub backlog: Vec<Backlog>,
    pub dead_letters: u64,
    /// New dead letters in the last hour.
    pub recent_dead_letters: u64,
    /// The first deliveries held for longer than [`STUCK_AFTER`].
    pub stuck: Vec<StuckDelivery>,
    pub stale_nodes: Vec<String>,
    /// Completed and failed in the last hour.
    pub finished: FinishedCounts,
    /// The same by type, for slightly more than an hour. Empty if there are too many types.
    pub finished_by_type: BTreeMap<String, FinishedCounts>,
    /// For the charts; an error if there are too many samples.
    pub samples: Result<Vec<Sample>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FinishedCounts {
    pub completed: u64,
    pub failed: u64,
}

impl FinishedCounts {
    fn add(&mut self, sample: &Sample) {
        self.completed += sample.completed;
        self.failed += sample.failed + sample.expired;
    }
}

/// A delivery held for longer than this counts as stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of stuck deliveries to name.
pub(super) const STUCK_SHOWN: usize = 5;

impl OverviewData {
    async fn load(queue: &Queue, range: TimeRange, at: Timestamp) -> Result<OverviewData> {
        let hour_ago = at - TimeDelta::hours(1);
        let backlog = queue.backlog().await?;
        let of_letters = |failed_before| DeadLetterFilter { limit: 1, failed_before, ..Default::default() };
        let dead_letters = queue.dead_letters(of_letters(None)).await?.total;
        let before = queue.dead_letters(of_letters(Some(hour_ago))).await?.total;
        let nodes = queue.nodes().await?;
        let stale = nodes.into_iter().filter(|node| node.status == NodeStatus::Stale).map(|node| node.node_id);
        let last_hour = SampleFilter { from: Some(hour_ago), ..Default::default() };
        let mut finished = FinishedCounts::default();
        queue.samples(last_hour).await?.iter().for_each(|sample| finished.add(sample));
        Ok(OverviewData {
            at,
            backlog,
            dead_letters,
            recent_dead_letters: dead_letters.saturating_sub(before),
            stuck: queue.stuck(STUCK_AFTER, STUCK_SHOWN + 1).await?,
            stale_nodes: stale.collect(),
            finished,
            finished_by_type: by_type(queue, hour_ago).await,
            samples: queue
                .samples(SampleFilter {
                    from: Some(first_step_start(range, at)),
                    step: step(range),
                    ..Default::default()
                })
                .await,
        })
    }
}

async fn by_type(queue: &Queue, since: Timestamp) -> BTreeMap<String, FinishedCounts> {
    let filter =
        SampleFilter { from: Some(since), step: Duration::from_secs(600), by_type: true, ..SampleFilter::default() };
    let mut finished: BTreeMap<String, FinishedCounts> = BTreeMap::new();
    for sample in queue.samples(filter).await.unwrap_or_default() {
        finished.entry(sample.event_type.clone().unwrap_or_default()).or_default().add(&sample);
    }
    finished
}

fn step(range: TimeRange) -> Duration {
    Duration::from_secs(range.steps().0.into())
}

/// The start of the first step, such that the last step is the current one.
pub(super) fn first_step_start(range: TimeRange, now: DateTime<Utc>) -> DateTime<Utc> {
    let (step_s, len) = range.steps();
    let step_us = i64::from(step_s) * 1_000_000;
    let current = now.timestamp_micros().div_euclid(step_us);
    let first = current - i64::try_from(len).unwrap_or(0) + 1;
    DateTime::from_timestamp_micros(first * step_us).unwrap_or(now)
}

/// Cached overview data by namespace and time range.
#[derive(Default)]
pub(crate) struct OverviewCache(SharedCache<(String, TimeRange), OverviewData>);

impl OverviewCache {
    pub(super) async fn get(&self, queue: &Queue, range: TimeRange) -> Result<Arc<OverviewData>> {
        let load = OverviewData::load(queue, range, queue.clock().now());
        self.0.get((queue.namespace().to_owned(), range), load).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_step_is_the_current_one() {
        let now: DateTime<Utc> = "2025-12-24T10:30:30Z".parse().unwrap();
        for range in TimeRange::ALL {
            let (step_s, len) = range.steps();
            let end = first_step_start(range, now) + TimeDelta::seconds(i64::from(step_s) * len as i64);
            assert!(end > now && end - now <= TimeDelta::seconds(step_s.into()), "{range:?}");
            assert_eq!(TimeRange::parse(range.name()).unwrap(), range);
        }
        assert_eq!(first_step_start(TimeRange::Hour, now).to_rfc3339(), "2025-12-24T09:31:00+00:00");
        assert!(TimeRange::parse("2h").is_err());
    }
}
