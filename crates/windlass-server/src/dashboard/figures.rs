//! What the overview is made of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use windlass::{Backlog, DeadLetterFilter, NodeStatus, Queue, Result, Sample, SampleFilter, StuckDelivery, Timestamp};

use super::rested::Rested;
use crate::error::ApiError;

/// How far back the charts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Range {
    #[default]
    Hour,
    SixHours,
    Day,
    Week,
}

impl Range {
    pub const ALL: [Range; 4] = [Range::Hour, Range::SixHours, Range::Day, Range::Week];

    pub fn name(self) -> &'static str {
        match self {
            Range::Hour => "1h",
            Range::SixHours => "6h",
            Range::Day => "24h",
            Range::Week => "7d",
        }
    }

    pub fn parse(name: &str) -> Result<Range, ApiError> {
        let found = Range::ALL.into_iter().find(|range| range.name() == name);
        found.ok_or_else(|| ApiError::invalid("range", "must be one of 1h, 6h, 24h, 7d"))
    }

    /// The length of a step in seconds, and how many there are.
    pub fn steps(self) -> (u32, usize) {
        match self {
            Range::Hour => (60, 60),
            Range::SixHours => (300, 72),
            Range::Day => (600, 144),
            Range::Week => (3_600, 168),
        }
    }
}

/// How a namespace stands and has fared.
pub(super) struct Figures {
    /// As of this instant.
    pub at: Timestamp,
    pub backlog: Vec<Backlog>,
    pub dead_letters: u64,
    /// Given up in the last hour.
    pub dead_lately: u64,
    /// Held for longer than [`STUCK_AFTER`]; the first few.
    pub stuck: Vec<StuckDelivery>,
    pub stale_nodes: Vec<String>,
    /// Done and given up in the last hour.
    pub ended: Ended,
    /// The same by type, of a little more than an hour. Empty where there are too many types.
    pub ended_by_type: BTreeMap<String, Ended>,
    /// For the charts; an error where there is too much to read.
    pub samples: Result<Vec<Sample>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ended {
    pub completed: u64,
    pub failed: u64,
}

impl Ended {
    fn add(&mut self, sample: &Sample) {
        self.completed += sample.completed;
        self.failed += sample.failed + sample.expired;
    }
}

/// Whoever holds something for this long may have got stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(600);
/// So many of them are named.
pub(super) const STUCK_SHOWN: usize = 5;

impl Figures {
    async fn gather(queue: &Queue, range: Range, at: Timestamp) -> Result<Figures> {
        let hour_ago = at - TimeDelta::hours(1);
        let backlog = queue.backlog().await?;
        let of_letters = |failed_before| DeadLetterFilter { limit: 1, failed_before, ..Default::default() };
        let dead_letters = queue.dead_letters(of_letters(None)).await?.total;
        let before = queue.dead_letters(of_letters(Some(hour_ago))).await?.total;
        let nodes = queue.nodes().await?;
        let stale = nodes.into_iter().filter(|node| node.status == NodeStatus::Stale).map(|node| node.node_id);
        let lately = SampleFilter { from: Some(hour_ago), ..Default::default() };
        let mut ended = Ended::default();
        queue.samples(lately).await?.iter().for_each(|sample| ended.add(sample));
        Ok(Figures {
            at,
            backlog,
            dead_letters,
            dead_lately: dead_letters.saturating_sub(before),
            stuck: queue.stuck(STUCK_AFTER, STUCK_SHOWN + 1).await?,
            stale_nodes: stale.collect(),
            ended,
            ended_by_type: by_type(queue, hour_ago).await,
            samples: queue
                .samples(SampleFilter { from: Some(begin(range, at)), step: step(range), ..Default::default() })
                .await,
        })
    }
}

async fn by_type(queue: &Queue, since: Timestamp) -> BTreeMap<String, Ended> {
    let filter =
        SampleFilter { from: Some(since), step: Duration::from_secs(600), by_type: true, ..SampleFilter::default() };
    let mut ended: BTreeMap<String, Ended> = BTreeMap::new();
    for sample in queue.samples(filter).await.unwrap_or_default() {
        ended.entry(sample.event_type.clone().unwrap_or_default()).or_default().add(&sample);
    }
    ended
}

fn step(range: Range) -> Duration {
    Duration::from_secs(range.steps().0.into())
}

/// When the first step begins, such that the last is the one that is under way.
pub(super) fn begin(range: Range, now: DateTime<Utc>) -> DateTime<Utc> {
    let (step_s, len) = range.steps();
    let step_us = i64::from(step_s) * 1_000_000;
    let current = now.timestamp_micros().div_euclid(step_us);
    let first = current - i64::try_from(len).unwrap_or(0) + 1;
    DateTime::from_timestamp_micros(first * step_us).unwrap_or(now)
}

/// The figures of all namespaces that somebody looks at.
#[derive(Default)]
pub(crate) struct Figured(Rested<(String, Range), Figures>);

impl Figured {
    pub(super) async fn get(&self, queue: &Queue, range: Range) -> Result<Arc<Figures>> {
        let gather = Figures::gather(queue, range, queue.clock().now());
        self.0.get((queue.namespace().to_owned(), range), gather).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_is_the_one_under_way() {
        let now: DateTime<Utc> = "2025-12-24T10:30:30Z".parse().unwrap();
        for range in Range::ALL {
            let (step_s, len) = range.steps();
            let end = begin(range, now) + TimeDelta::seconds(i64::from(step_s) * len as i64);
            assert!(end > now && end - now <= TimeDelta::seconds(step_s.into()), "{range:?}");
            assert_eq!(Range::parse(range.name()).unwrap(), range);
        }
        assert_eq!(begin(Range::Hour, now).to_rfc3339(), "2025-12-24T09:31:00+00:00");
        assert!(Range::parse("2h").is_err());
    }
}
