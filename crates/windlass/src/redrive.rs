//! Bringing dead letters back, or throwing them away.

use crate::error::Result;
use crate::event::tag_set;
use crate::inspect::{DeadLetterFilter, check_filter};
use crate::queue::Queue;

/// How many dead letters one transaction takes.
const BATCH: usize = 500;

impl Queue {
    /// Puts every dead letter that matches back into the queue, with fresh retries; how many.
    pub async fn redrive(&self, mut filter: DeadLetterFilter) -> Result<usize> {
        self.check_dead_letter_filter(&filter).await?;
        // Those redriven leave the list, so the next page is always the first.
        (filter.limit, filter.offset) = (BATCH, 0);
        let mut redriven = 0;
        loop {
            let page = self.store().dead_letters(self.namespace(), &filter).await?;
            let mut letters = Vec::with_capacity(page.items.len());
            for letter in page.items {
                let tags = tag_set("tags", &letter.event.tags, self.limits())?;
                let event = &letter.event;
                let delivery = self.route_one(&letter.subscription, &event.event_type, &tags, event.priority).await?;
                letters.push((letter, delivery));
            }
            if letters.is_empty() {
                return Ok(redriven);
            }
            // What fails again while we are at it is left for the next time.
            let newest = letters.iter().map(|(letter, _)| letter.failed_at).max();
            filter.failed_before = filter.failed_before.or(newest.map(|at| at + chrono::TimeDelta::microseconds(1)));
            redriven += self.store().redrive(self.namespace(), &letters, self.now()).await?;
            self.core().wakes.ring(self.namespace(), &[]);
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

    async fn check_dead_letter_filter(&self, filter: &DeadLetterFilter) -> Result<()> {
        check_filter(&filter.types, &[], self.limits())?;
        let topology = self.topology().await?;
        self.check_subscription(&topology, filter.subscription.as_deref())
    }
}
