//! The months of history: made before they come, and dropped when all in them is over. Only PostgreSQL has them.

use crate::clock::Timestamp;
use crate::error::Result;
use crate::months::{self, Kept, Month, before_all, missing};
use crate::queue::Queue;
use crate::retention::{longest_ms, over_before};
use crate::store::Dropping;

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

/// What may go.
struct Over {
    /// Whatever ended before this instant,
    before: Timestamp,
    /// unless it belongs to one of these namespaces.
    spared: Vec<String>,
}

impl Queue {
    /// Makes the partitions of this month and the next two, and drops months in which everything is over, for the whole
    /// database: those that ended longer ago than any namespace, type or subscription keeps what is completed. What must
    /// stay of such a month – live events, dead letters, what ended later – is put aside first. Nobody is kept waiting
    /// for more than a moment: where a table is in use, it is tried again next time. Nothing is dropped for a day after
    /// the clock has leapt. On SQLite there is nothing to do.
    pub async fn partitions_once(&self) -> Result<Partitions> {
        let mut done = Partitions::default();
        if !self.store().has_months() {
            return Ok(done);
        }
        let now = self.store().now(self.now()).await?;
        for part in missing(&self.store().months().await?, now) {
            match self.store().add_month(part).await? {
                true => done.made += 1,
                false => done.put_off += 1,
            }
        }
        let rules = self.store().rules().await?;
        if let Some(longest_ms) = longest_ms(&rules)
            && self.believes(now).await?
        {
            // What is archived goes row by row.
            let spared = rules.into_iter().filter(|(_, rules)| rules.archives()).map(|(namespace, _)| namespace);
            let over = Over { before: over_before(now, longest_ms), spared: spared.collect() };
            self.drop_months(&over, &mut done).await?;
        }
        done.dropped += self.store().finish_dropping().await?;
        if done != Partitions::default() {
            let Partitions { made, dropped, put_off, strays } = done;
            tracing::info!(made, dropped, put_off, strays, "months of history");
        }
        Ok(done)
    }

    async fn drop_months(&self, over: &Over, done: &mut Partitions) -> Result<()> {
        let found = self.store().months().await?;
        let mut left = Vec::new();
        for month in months::over(&found, Kept::Events, over.before) {
            if !self.drop_month(Kept::Events, month, over, done).await? {
                left.push(month);
            }
        }
        for month in before_all(months::over(&found, Kept::Attempts, over.before), &left) {
            self.drop_month(Kept::Attempts, month, over, done).await?;
        }
        // Events that are in no month, and whose attempts went with one.
        while let Some(batch) = self.store().delete_strays(over.before, &over.spared).await? {
            done.strays += batch;
        }
        Ok(())
    }

    async fn drop_month(&self, kept: Kept, month: Month, over: &Over, done: &mut Partitions) -> Result<bool> {
        match self.store().drop_month((kept, month), over.before, &over.spared).await? {
            Dropping::Dropped => return Ok(true),
            Dropping::Busy => tracing::info!("{} of {month} are in use; dropped another time", kept.as_str()),
            Dropping::TooMuchStays => {
                tracing::info!("much of {} of {month} must stay; the rest is deleted row by row", kept.as_str());
            }
        }
        done.put_off += 1;
        Ok(false)
    }
}
