//! Who asks for which events: each process notes it now and then, so that others can tell that nobody does.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::claim::Filter;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;
use crate::queue::{Queue, WeakQueue};
use crate::topology::wants;

/// The first note follows soon after the first who asks, others now and then for as long as somebody does.
const FIRST_NOTE: Duration = Duration::from_secs(1);
const NOTE_EVERY: Duration = Duration::from_secs(20);
/// How many different wishes of one namespace a process notes.
const CONSUMERS_MAX: usize = 1_000;

/// What somebody asks for, or asked for lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsumerView {
    /// The process through which it is asked: a node's or a server's.
    pub process: String,
    /// Who asked so last.
    pub worker_id: String,
    /// From this subscription; `None` stands for more wishes than the process notes.
    pub subscription: Option<String>,
    /// Of these types, by exact name or by prefix ending in `*`; all if empty.
    pub types: Vec<String>,
    /// But not of these.
    pub except_types: Vec<String>,
    /// With any of these tags; all if empty.
    pub tags: Vec<String>,
    /// When it was last noted.
    pub seen_at: DateTime<Utc>,
}

impl ConsumerView {
    /// Whether it may take events of this kind.
    fn asks_for(&self, subscription: &str, event_type: &str, tags: &[String]) -> bool {
        let excepted = self.except_types.iter().any(|pattern| names::type_matches(pattern, event_type));
        self.subscription.as_deref().is_none_or(|from| from == subscription)
            && wants(&self.types, &self.tags, event_type, tags)
            && !excepted
    }
}

/// A wish to be noted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Consumer {
    /// Empty: there are more.
    pub subscription: String,
    pub types: Vec<String>,
    pub except_types: Vec<String>,
    pub tags: Vec<String>,
    pub worker_id: String,
}

impl Consumer {
    /// Of what is asked for, whoever does.
    pub fn filter_id(&self) -> i64 {
        let mut hasher = DefaultHasher::new();
        (&self.subscription, &self.types, &self.except_types, &self.tags).hash(&mut hasher);
        hasher.finish() as i64
    }
}

/// When somebody last asked for events of this kind.
pub(crate) fn last_requested(
    consumers: &[ConsumerView],
    from: &str,
    event_type: &str,
    tags: &[String],
) -> Option<Timestamp> {
    let asking = consumers.iter().filter(|consumer| consumer.asks_for(from, event_type, tags));
    asking.map(|consumer| consumer.seen_at).max()
}

impl Queue {
    /// Who asked for events within the last hour, and for which. Those who still ask were seen within a minute.
    pub async fn consumers(&self) -> Result<Vec<ConsumerView>> {
        self.topology().await?;
        self.store().consumers(self.namespace()).await
    }

    /// Notes what this process is asked for, in all namespaces; how many different wishes. Done by itself while somebody
    /// claims, except under a test clock.
    pub async fn record_consumers_once(&self) -> Result<usize> {
        let mut noted = 0;
        for (namespace, consumers) in of_namespaces(self.claimers().filters_in_use()) {
            self.store().record_consumers(&namespace, &self.core().process, &consumers, self.now()).await?;
            noted += consumers.len();
        }
        Ok(noted)
    }

    /// Sees to it that those who ask are noted from now on.
    pub(crate) fn record_consumers_later(&self) {
        if self.now().is_none() && self.claimers().start_recording() {
            tokio::spawn(note(self.downgrade()));
        }
    }
}

/// The different wishes in each namespace, no more than can be noted.
fn of_namespaces(asked: Vec<(Filter, String)>) -> BTreeMap<String, Vec<Consumer>> {
    let mut all: BTreeMap<String, BTreeMap<i64, Consumer>> = BTreeMap::new();
    for (filter, worker_id) in asked {
        let namespace = filter.namespace.clone();
        let consumer = filter.into_consumer(worker_id);
        all.entry(namespace).or_default().insert(consumer.filter_id(), consumer);
    }
    let bounded = |consumers: BTreeMap<i64, Consumer>| {
        let more = consumers.len() > CONSUMERS_MAX;
        let mut consumers: Vec<Consumer> = consumers.into_values().take(CONSUMERS_MAX).collect();
        if let (true, Some(last)) = (more, consumers.last_mut()) {
            let worker_id = std::mem::take(&mut last.worker_id);
            let none = Vec::new;
            *last =
                Consumer { subscription: String::new(), types: none(), except_types: none(), tags: none(), worker_id };
        }
        consumers
    };
    all.into_iter().map(|(namespace, consumers)| (namespace, bounded(consumers))).collect()
}

/// Notes until nobody asks any more. It does not keep the queue alive.
async fn note(queue: WeakQueue) {
    let mut pause = FIRST_NOTE;
    loop {
        tokio::time::sleep(pause).await;
        let Some(queue) = queue.upgrade() else { return };
        match queue.record_consumers_once().await {
            Ok(0) if queue.claimers().stop_recording_if_unused() => return,
            Ok(_) => {}
            Err(Error::Closed) => return,
            Err(error) => tracing::debug!(%error, "could not note who asks for events; trying again"),
        }
        pause = NOTE_EVERY;
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
    fn whoever_could_take_an_event_asks_for_it() {
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
            assert_eq!(consumer.asks_for("main", "order.paid", &list(&["email"])), expected, "{consumer:?}");
        }
    }

    #[test]
    fn one_stands_for_more_than_can_be_noted() {
        let asked =
            |count: usize| (0..count).map(|n| (Filter::new("ns").tag(&n.to_string()), "w".to_owned())).collect();
        assert_eq!(
            of_namespaces(asked(CONSUMERS_MAX))["ns"]
                .iter()
                .filter(|consumer| consumer.subscription.is_empty())
                .count(),
            0
        );
        let most = of_namespaces(asked(CONSUMERS_MAX + 1));
        assert_eq!(most["ns"].len(), CONSUMERS_MAX);
        assert_eq!(most["ns"].iter().filter(|consumer| consumer.subscription.is_empty()).count(), 1);
        let twice = vec![(Filter::new("ns"), "a".to_owned()), (Filter::new("ns"), "b".to_owned())];
        assert_eq!(of_namespaces(twice)["ns"].len(), 1);
    }
}
