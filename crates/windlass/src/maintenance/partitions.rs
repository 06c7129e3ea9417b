//! The months of history: made before they come, and dropped when all in them is over. Only PostgreSQL has them.

use crate::error::Result;
use crate::maintenance::months::{self, Kept, Month, before_all, is_ahead, missing};
use crate::maintenance::retention::{longest_ms, over_before};
use crate::queue::Queue;
use crate::store::{DropOutcome, ExpiredMonths, MonthStore};

/// What became of the months of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Partitions {
    /// Partitions that were made.
    pub made: usize,
    /// Partitions that were dropped.
    pub dropped: usize,
    /// Partitions that could not be made or dropped now: their table is in use, or they hold too much that must stay.
    pub put_off: usize,
    /// Events that were left alone outside of all months, and deleted.
    pub strays: usize,
}

/// How many batches of events one call deletes row by row.
const STRAYS_BATCHES_MAX: usize = 1_000;

impl Queue {
    /// Makes the partitions of this month and the next two, and drops months in which everything is over, for the whole
    /// database: those that ended longer ago than any namespace, type or subscription keeps what is completed. What must
    /// stay of such a month – live events, dead letters, what ended later – is put aside first. Nobody is kept waiting
    /// for more than a moment: where a table is in use, it is tried again next time. Nothing is dropped for a day after
    /// the clock has leapt. On SQLite there is nothing to do.
    pub async fn partitions_once(&self) -> Result<Partitions> {
        let mut done = Partitions::default();
        let Some(store) = self.store().by_months() else { return Ok(done) };
        // What was left of the last time does not wait for all that may go wrong now.
        done.dropped += store.finish_dropping().await?;
        let now = self.store().now(self.now()).await?;
        for part in missing(&store.months().await?, now) {
            match store.add_month(part, is_ahead(part.1, now)).await? {
                true => done.made += 1,
                false => done.put_off += 1,
            }
        }
        let rules = store.rules().await?;
        if let Some(longest_ms) = longest_ms(&rules.of)
            && self.believes(now).await?
        {
            // What is archived goes row by row.
            let spared = rules.of.into_iter().filter(|(_, rules)| rules.archives()).map(|(namespace, _)| namespace);
            let (before, spared) = (over_before(now, longest_ms), spared.collect());
            drop_months(store, &ExpiredMonths { before, spared, version: rules.version }, &mut done).await?;
            done.dropped += store.finish_dropping().await?;
        }
        if done != Partitions::default() {
            let Partitions { made, dropped, put_off, strays } = done;
            tracing::info!(made, dropped, put_off, strays, "months of history");
        }
        Ok(done)
    }
}

async fn drop_months(store: &dyn MonthStore, over: &ExpiredMonths, done: &mut Partitions) -> Result<()> {
    let found = store.months().await?;
    let mut put_off = Vec::new();
    for month in months::over(&found, Kept::Events, over.before) {
        if !matches!(
            drop_month(store, Kept::Events, month, over, done).await?,
            DropOutcome::Dropped | DropOutcome::TooMuchStays
        ) {
            put_off.push(month);
        }
    }
    for month in before_all(months::over(&found, Kept::Attempts, over.before), &put_off) {
        drop_month(store, Kept::Attempts, month, over, done).await?;
    }
    // Events whose attempts went with a month, and which are in none themselves, or in one that stays.
    for _ in 0..STRAYS_BATCHES_MAX {
        let Some(batch) = store.delete_strays(over).await? else { break };
        done.strays += batch;
    }
    Ok(())
}

async fn drop_month(
    store: &dyn MonthStore,
    kept: Kept,
    month: Month,
    over: &ExpiredMonths,
    done: &mut Partitions,
) -> Result<DropOutcome> {
    let dropping = store.drop_month((kept, month), over).await?;
    let why = match dropping {
        DropOutcome::Dropped => return Ok(dropping),
        DropOutcome::Busy => "in use",
        DropOutcome::TooMuchStays => "much of them must stay; the rest is deleted row by row",
        DropOutcome::Outdated => "the rules have changed just now",
        DropOutcome::Refused => "only the owner of the tables may do that",
    };
    tracing::info!("{} of {month} are not dropped now: {why}", kept.as_str());
    done.put_off += 1;
    Ok(dropping)
}
