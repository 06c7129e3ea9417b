//! Records which events each process's workers request, so that other processes can report events without a consumer.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::claim::Filter;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;
use crate::queue::{Queue, WeakQueue};
use crate::topology::wants;

/// The delay of the first record after the first claim request, and the interval of later ones while requests
/// continue.
const FIRST_RECORD_DELAY: Duration = Duration::from_secs(1);
const RECORD_INTERVAL: Duration = Duration::from_secs(20);
/// The most filters that a process records per namespace.
const CONSUMERS_MAX: usize = 1_000;

/// A filter that workers of a process claim with, or did within the last hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsumerView {
    /// The process that serves the requests: a node's or a server's.
    pub process: String,
    /// The worker that used the filter last.
    pub worker_id: String,
    /// The subscription; `None` stands for the filters beyond the limit that a process records.
    pub subscription: Option<String>,
    /// The types, by exact name or by prefix ending in `*`; all if empty.
    pub types: Vec<String>,
    /// Excluded types.
    pub except_types: Vec<String>,
    /// Tags, any of which must match; all if empty.
    pub tags: Vec<String>,
    /// When it was last recorded.
    pub seen_at: DateTime<Utc>,
}

impl ConsumerView {
    /// Whether the filter matches events of this type and tags.
    fn is_match(&self, subscription: &str, event_type: &str, tags: &[String]) -> bool {
        let is_excluded = self.except_types.iter().any(|pattern| names::type_matches(pattern, event_type));
        self.subscription.as_deref().is_none_or(|from| from == subscription)
            && wants(&self.types, &self.tags, event_type, tags)
            && !is_excluded
    }
}

/// A filter to record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Consumer {
    /// Empty for the filters beyond the limit.
    pub subscription: String,
    pub types: Vec<String>,
    pub except_types: Vec<String>,
    pub tags: Vec<String>,
    pub worker_id: String,
}

impl Consumer {
    /// A hash of the filter, without the worker.
    pub fn filter_id(&self) -> i64 {
        let mut hasher = DefaultHasher::new();
        (&self.subscription, &self.types, &self.except_types, &self.tags).hash(&mut hasher);
        hasher.finish() as i64
    }
}

/// When events of this type and tags were last requested from the subscription.
pub(crate) fn last_requested(
    consumers: &[ConsumerView],
    subscription: &str,
    event_type: &str,
    tags: &[String],
) -> Option<Timestamp> {
    let matching = consumers.iter().filter(|consumer| consumer.is_match(subscription, event_type, tags));
    matching.map(|consumer| consumer.seen_at).max()
}

impl Queue {
    /// The filters with which events were requested within the last hour. Those still in use were recorded within the
    /// last minute.
    pub async fn consumers(&self) -> Result<Vec<ConsumerView>> {
        self.topology().await?;
        self.store().consumers(self.namespace()).await
    }

    /// Records the filters that workers of this process claim with, in all namespaces, and returns their number. Runs
    /// automatically while workers claim, except under a test clock.
    pub async fn record_consumers_once(&self) -> Result<usize> {
        let mut recorded = 0;
        for (namespace, consumers) in group_by_namespace(self.claimers().filters_in_use()) {
            self.store().record_consumers(&namespace, &self.core().process, &consumers, self.now()).await?;
            recorded += consumers.len();
        }
        Ok(recorded)
    }

    /// Starts the background task that records consumers, unless it runs.
    pub(crate) fn record_consumers_later(&self) {
        if self.now().is_none() && self.claimers().start_recording() {
            tokio::spawn(record_periodically(self.downgrade()));
        }
    }
}

/// The distinct filters of each namespace, at most [`CONSUMERS_MAX`] each.
fn group_by_namespace(filters: Vec<(Filter, String)>) -> BTreeMap<String, Vec<Consumer>> {
    let mut all: BTreeMap<String, BTreeMap<i64, Consumer>> = BTreeMap::new();
    for (filter, worker_id) in filters {
        let namespace = filter.namespace.clone();
        let consumer = filter.into_consumer(worker_id);
        all.entry(namespace).or_default().insert(consumer.filter_id(), consumer);
    }
    let bounded = |consumers: BTreeMap<i64, Consumer>| {
        let is_truncated = consumers.len() > CONSUMERS_MAX;
        let mut consumers: Vec<Consumer> = consumers.into_values().take(CONSUMERS_MAX).collect();
        if let (true, Some(last)) = (is_truncated, consumers.last_mut()) {
            let worker_id = std::mem::take(&mut last.worker_id);
            let none = Vec::new;
            *last =
                Consumer { subscription: String::new(), types: none(), except_types: none(), tags: none(), worker_id };
        }
        consumers
    };
    all.into_iter().map(|(namespace, consumers)| (namespace, bounded(consumers))).collect()
}

/// Records consumers until no filter is in use. It does not keep the queue alive.
async fn record_periodically(queue: WeakQueue) {
    let mut delay = FIRST_RECORD_DELAY;
    loop {
        tokio::time::sleep(delay).await;
        let Some(queue) = queue.upgrade() else { return };
        match queue.record_consumers_once().await {
            Ok(0) if queue.claimers().stop_recording_if_unused() => return,
            Ok(_) => {}
            Err(Error::Closed) => return,
            Err(error) => tracing::debug!(%error, "could not record consumers; retrying"),
        }
        delay = RECORD_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(ToString::to_string).collect()
    }

    fn view(subscription: Option<&str>, types: &[&str], except: &[&str], tags: &[&str]) -> ConsumerView {
        ConsumerView {
            process: "p".into(),
            worker_id: "w".into(),
            subscription: subscription.map(str::to_owned),
            types: list(types),
            except_types: list(except),
            tags: list(tags),
            seen_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn consumer_matches_by_subscription_type_and_tags() {
        for (consumer, expected) in [
            (view(Some("main"), &[], &[], &[]), true),
            (view(None, &[], &[], &[]), true),
            (view(Some("audit"), &[], &[], &[]), false),
            (view(Some("main"), &["order.*"], &[], &[]), true),
            (view(Some("main"), &["user.*"], &[], &[]), false),
            (view(Some("main"), &[], &["order.paid"], &[]), false),
            (view(Some("main"), &[], &["user.*"], &[]), true),
            (view(Some("main"), &[], &[], &["email", "sms"]), true),
            (view(Some("main"), &[], &[], &["sms"]), false),
        ] {
            assert_eq!(consumer.is_match("main", "order.paid", &list(&["email"])), expected, "{consumer:?}");
        }
    }

    #[test]
    fn one_record_stands_for_filters_beyond_the_limit() {
        let filters =
            |count: usize| (0..count).map(|n| (Filter::new("ns").tag(&n.to_string()), "w".to_owned())).collect();
        assert_eq!(
            group_by_namespace(filters(CONSUMERS_MAX))["ns"]
                .iter()
                .filter(|consumer| consumer.subscription.is_empty())
                .count(),
            0
        );
        let most = group_by_namespace(filters(CONSUMERS_MAX + 1));
        assert_eq!(most["ns"].len(), CONSUMERS_MAX);
        assert_eq!(most["ns"].iter().filter(|consumer| consumer.subscription.is_empty()).count(), 1);
        let twice = vec![(Filter::new("ns"), "a".to_owned()), (Filter::new("ns"), "b".to_owned())];
        assert_eq!(group_by_namespace(twice)["ns"].len(), 1);
    }
}
