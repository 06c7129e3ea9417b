//! How many deliveries wait, run and are dead, by subscription.

use std::collections::HashMap;
use std::sync::Arc;

use windlass::{Queue, Result, StatRow, Status};

use super::rested::Rested;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub waiting: u64,
    pub running: u64,
    pub dead: u64,
}

impl Counts {
    fn add(&mut self, status: Status, count: u64) {
        match status {
            Status::Pending => self.waiting += count,
            Status::Processing => self.running += count,
            Status::Failed | Status::Expired => self.dead += count,
            _ => {}
        }
    }
}

/// Of one namespace.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub total: Counts,
    by_subscription: HashMap<String, Counts>,
}

impl Counted {
    pub fn of(&self, subscription: &str) -> Counts {
        self.by_subscription.get(subscription).copied().unwrap_or_default()
    }

    fn add(&mut self, row: StatRow) {
        self.total.add(row.status, row.count);
        self.by_subscription.entry(row.subscription).or_default().add(row.status, row.count);
    }
}

/// The counts of all namespaces that somebody looks at.
#[derive(Default)]
pub(crate) struct AllCounted(Rested<String, Counted>);

impl AllCounted {
    pub(super) async fn get(&self, queue: &Queue) -> Result<Arc<Counted>> {
        let gather = async {
            let mut counted = Counted::default();
            // What ended is not asked about.
            queue.stats(queue.clock().now()).await?.into_iter().for_each(|row| counted.add(row));
            Ok(counted)
        };
        self.0.get(queue.namespace().to_owned(), gather).await
    }
}
