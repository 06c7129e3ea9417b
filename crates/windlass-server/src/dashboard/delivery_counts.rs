//! Counts pending, running and dead deliveries by subscription.

use std::collections::HashMap;
use std::sync::Arc;

use windlass::{Queue, Result, StatRow, Status};

use super::shared_cache::SharedCache;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeliveryCounts {
    pub waiting: u64,
    pub running: u64,
    pub dead: u64,
}

impl DeliveryCounts {
    fn add(&mut self, status: Status, count: u64) {
        match status {
            Status::Pending => self.waiting += count,
            Status::Processing => self.running += count,
            Status::Failed | Status::Expired => self.dead += count,
            _ => {}
        }
    }
}

/// The counts of one namespace.
#[derive(Debug, Default)]
pub(super) struct NamespaceCounts {
    pub total: DeliveryCounts,
    by_subscription: HashMap<String, DeliveryCounts>,
}

impl NamespaceCounts {
    pub fn of(&self, subscription: &str) -> DeliveryCounts {
        self.by_subscription.get(subscription).copied().unwrap_or_default()
    }

    fn add(&mut self, row: StatRow) {
        self.total.add(row.status, row.count);
        self.by_subscription.entry(row.subscription).or_default().add(row.status, row.count);
    }
}

/// Cached counts by namespace.
#[derive(Default)]
pub(crate) struct DeliveryCountCache(SharedCache<String, NamespaceCounts>);

impl DeliveryCountCache {
    pub(super) async fn get(&self, queue: &Queue) -> Result<Arc<NamespaceCounts>> {
        let load = async {
            let mut counted = NamespaceCounts::default();
            // Passing now as `since` leaves out finished events.
            queue.stats(queue.clock().now()).await?.into_iter().for_each(|row| counted.add(row));
            Ok(counted)
        };
        self.0.get(queue.namespace().to_owned(), load).await
    }
}
