//! Redrives and purges dead letters.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::tag_set;
use crate::observe::inspect::{DeadLetter, DeadLetterFilter, check_filter};
use crate::queue::Queue;
use crate::store::NewDelivery;

/// The maximum number of dead letters in one transaction.
const BATCH: usize = 500;

impl Queue {
    /// Puts every matching dead letter back into the queue with its retries reset. Returns how many.
    pub async fn redrive(&self, mut filter: DeadLetterFilter) -> Result<usize> {
        self.check_dead_letter_filter(&filter).await?;
        // Events that were committed earlier come first in their groups, so route them first.
        self.route_arrivals().await?;
        // Exclude dead letters that fail again during this call.
        (filter.limit, filter.offset, filter.oldest_first, filter.without_payloads) = (1, 0, false, true);
        let Some(newest) = self.store().dead_letters(self.namespace(), &filter).await?.items.pop() else {
            return Ok(0);
        };
        filter.failed_before = Some(newest.failed_at + chrono::TimeDelta::microseconds(1));
        // Oldest first, and each batch in publish order, so that groups keep their order. Redriven dead letters leave
        // the list, so the next page is always the first.
        (filter.limit, filter.oldest_first) = (BATCH, true);
        let mut redriven = 0;
        loop {
            let page = self.store().dead_letters(self.namespace(), &filter).await?;
            let mut letters = Vec::with_capacity(page.items.len());
            for letter in page.items {
                let (event, subscription) = (&letter.event, &letter.subscription);
                let tags = tag_set("tags", &event.tags, self.limits())?;
                let mut delivery = self.route_one(subscription, &event.event_type, &tags, event.priority).await?;
                // The event may have its own `max_retries`.
                delivery.max_retries = letter.max_retries;
                letters.push((letter, delivery));
            }
            if letters.is_empty() {
                return Ok(redriven);
            }
            letters.sort_by_key(|(letter, _)| letter.event.id);
            let letters: Arc<[(DeadLetter, NewDelivery)]> = letters.into();
            redriven += self.store().redrive(self.namespace(), letters.clone(), self.now()).await?;
            self.core().wakes.notify(self.namespace(), letters.iter().map(|(_, delivery)| delivery.ready_lane()));
        }
    }

    /// Deletes every matching dead letter. Returns how many. Their events stay in the history.
    pub async fn purge(&self, filter: DeadLetterFilter) -> Result<usize> {
        self.check_dead_letter_filter(&filter).await?;
        let mut purged = 0;
        loop {
            let batch = self.store().purge(self.namespace(), &filter, BATCH).await?;
            purged += batch;
            if batch < BATCH {
                return Ok(purged);
            }
        }
    }

    pub(crate) async fn check_dead_letter_filter(&self, filter: &DeadLetterFilter) -> Result<()> {
        let (ids, max) = (filter.event_ids.len(), self.limits().page_max);
        if ids > max {
            return Err(Error::invalid("event_ids", format!("has {ids} entries; the limit is {max}")));
        }
        check_filter(&filter.types, &[], self.limits())?;
        self.check_subscription_filter(filter.subscription.as_deref()).await
    }
}
