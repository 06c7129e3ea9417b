//! Bringing dead letters back, or throwing them away.

use crate::error::{Error, Result};
use crate::event::tag_set;
use crate::observe::inspect::{DeadLetterFilter, check_filter};
use crate::queue::Queue;

/// How many dead letters one transaction takes.
const BATCH: usize = 500;

impl Queue {
    /// Puts every dead letter that matches back into the queue, with fresh retries; how many.
    pub async fn redrive(&self, mut filter: DeadLetterFilter) -> Result<usize> {
        self.check_dead_letter_filter(&filter).await?;
        // What was committed before is due before, so it joins its groups first.
        self.route_arrivals().await?;
        // What fails again while we are at it is left for the next time.
        (filter.limit, filter.offset, filter.oldest_first, filter.without_payloads) = (1, 0, false, true);
        let Some(newest) = self.store().dead_letters(self.namespace(), &filter).await?.items.pop() else {
            return Ok(0);
        };
        filter.failed_before = Some(newest.failed_at + chrono::TimeDelta::microseconds(1));
        // The oldest first and, of those, in publish order, so that groups keep theirs. Those redriven leave
        // the list: the next page is always the first.
        (filter.limit, filter.oldest_first) = (BATCH, true);
        let mut redriven = 0;
        loop {
            let page = self.store().dead_letters(self.namespace(), &filter).await?;
            let mut letters = Vec::with_capacity(page.items.len());
            for letter in page.items {
                let (event, subscription) = (&letter.event, &letter.subscription);
                let tags = tag_set("tags", &event.tags, self.limits())?;
                let mut delivery = self.route_one(subscription, &event.event_type, &tags, event.priority).await?;
                // It may have been the event's own.
                delivery.max_retries = letter.max_retries;
                letters.push((letter, delivery));
            }
            if letters.is_empty() {
                return Ok(redriven);
            }
            letters.sort_by_key(|(letter, _)| letter.event.id);
            redriven += self.store().redrive(self.namespace(), &letters, self.now()).await?;
            self.core().wakes.notify(self.namespace(), letters.iter().map(|(_, delivery)| delivery.ready_lane()));
        }
    }

    /// Deletes every dead letter that matches; how many. Their events stay in the history.
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
