//! Maintains the monthly partitions of history on PostgreSQL: creates them ahead, and drops expired ones.

use crate::error::Result;
use crate::maintenance::months::{self, HistoryTable, Month, before_postponed, is_ahead, missing_partitions};
use crate::maintenance::retention::{delete_before, longest_keep_ms};
use crate::queue::Queue;
use crate::store::{DropOutcome, ExpiredMonths, MonthStore};

/// The result of [`Queue::partitions_once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Partitions {
    /// Partitions that were created.
    pub made: usize,
    /// Partitions that were dropped.
    pub dropped: usize,
    /// Partitions that could not be created or dropped now: the table is in use, or too many rows must be kept.
    pub postponed: usize,
    /// Events outside the dropped months that were deleted because their attempts were dropped.
    pub strays: usize,
}

/// How many batches of strays one call deletes.
const STRAYS_BATCHES_MAX: usize = 1_000;

impl Queue {
    /// Creates the partitions of this month and the next two, and drops expired months, for the whole database. A month
    /// is expired if it ended longer ago than the longest retention of completed deliveries of any namespace, type or
    /// subscription. Rows that must be kept (pending and processing events, dead letters, deliveries that ended later)
    /// are moved out first.
    ///
    /// Locks are held only briefly: if a table is in use, the next call retries. After the clock jumped, nothing is
    /// dropped for a day. On SQLite this does nothing.
    pub async fn partitions_once(&self) -> Result<Partitions> {
        let mut done = Partitions::default();
        let Some(store) = self.store().by_months() else { return Ok(done) };
        // First, so that an error below does not delay the drops that the last call began.
        done.dropped += store.finish_dropping().await?;
        let now = self.store().now(self.now()).await?;
        for partition in missing_partitions(&store.months().await?, now) {
            match store.add_month(partition, is_ahead(partition.1, now)).await? {
                true => done.made += 1,
                false => done.postponed += 1,
            }
        }
        let rules = store.rules().await?;
        if let Some(longest_keep_ms) = longest_keep_ms(&rules.of)
            && self.trusts_clock(now).await?
        {
            // History that is archived is deleted row by row.
            let spared = rules.of.into_iter().filter(|(_, rules)| rules.archives()).map(|(namespace, _)| namespace);
            let (before, spared) = (delete_before(now, longest_keep_ms), spared.collect());
            drop_months(store, &ExpiredMonths { before, spared, version: rules.version }, &mut done).await?;
            done.dropped += store.finish_dropping().await?;
        }
        if done != Partitions::default() {
            let Partitions { made, dropped, postponed, strays } = done;
            tracing::info!(made, dropped, postponed, strays, "maintained the monthly partitions");
        }
        Ok(done)
    }
}

async fn drop_months(store: &dyn MonthStore, over: &ExpiredMonths, done: &mut Partitions) -> Result<()> {
    let found = store.months().await?;
    let mut postponed = Vec::new();
    for month in months::ended_before(&found, HistoryTable::Events, over.before) {
        if !matches!(
            drop_month(store, HistoryTable::Events, month, over, done).await?,
            DropOutcome::Dropped | DropOutcome::TooMuchStays
        ) {
            postponed.push(month);
        }
    }
    for month in before_postponed(months::ended_before(&found, HistoryTable::Attempts, over.before), &postponed) {
        drop_month(store, HistoryTable::Attempts, month, over, done).await?;
    }
    // Delete events whose attempts were dropped with a month, while the events are in a month that stays or in none.
    for _ in 0..STRAYS_BATCHES_MAX {
        let Some(batch) = store.delete_strays(over).await? else { break };
        done.strays += batch;
    }
    Ok(())
}

async fn drop_month(
    store: &dyn MonthStore,
    table: HistoryTable,
    month: Month,
    over: &ExpiredMonths,
    done: &mut Partitions,
) -> Result<DropOutcome> {
    let outcome = store.drop_month((table, month), over).await?;
    let why = match outcome {
        DropOutcome::Dropped => return Ok(outcome),
        DropOutcome::Busy => "the table is in use",
        DropOutcome::TooMuchStays => "too many rows must be kept; the others are deleted row by row",
        DropOutcome::Outdated => "the retention settings have just changed",
        DropOutcome::Refused => "only the owner of the tables may drop it",
    };
    tracing::info!("did not drop partition {month} of {}: {why}", table.as_str());
    done.postponed += 1;
    Ok(outcome)
}
