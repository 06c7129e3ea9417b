//! Recomputes the next ticks of schedules after the database clock moved back. Without this, no tick would fire until
//! the clock reaches the old time again. Ticks that have fired are recorded, and do not fire again.

use std::collections::HashMap;

use super::Rule;
use crate::error::Result;
use crate::queue::Queue;
use crate::store::{Rescheduled, SchedulesAhead};

/// How many schedules one statement reads.
const BATCH: usize = 1_000;

impl Queue {
    /// Recomputes next ticks that were computed while the database clock was ahead. Returns how many it changed.
    /// `windlass serve` and every running [`Node`](crate::Node) do this automatically.
    pub async fn reschedule_once(&self) -> Result<usize> {
        self.topology().await?;
        let (mut after, mut moved) = (String::new(), 0);
        loop {
            let found = self.store().schedules_from_the_future(self.namespace(), &after, BATCH, self.now()).await?;
            let last = found.schedules.last().map(|schedule| schedule.name.clone());
            let is_last = found.schedules.len() < BATCH;
            let too_late = too_late(found);
            if !too_late.is_empty() {
                moved += self.store().reschedule(self.namespace(), &too_late, self.now()).await?;
            }
            match last {
                Some(last) if !is_last => after = last,
                _ => break,
            }
        }
        if moved > 0 {
            tracing::warn!(
                namespace = self.namespace(),
                moved,
                "the clock moved back; recomputed the next ticks of schedules"
            );
            self.core().schedules_changed.send_replace(());
        }
        Ok(moved)
    }
}

/// Schedules whose rule has a tick before their stored next tick. Rules that this version cannot parse are skipped.
fn too_late(found: SchedulesAhead) -> Vec<Rescheduled> {
    let mut first = HashMap::new();
    let too_late = found.schedules.into_iter().filter_map(|schedule| {
        let rule = (schedule.cron, schedule.timezone);
        let first =
            first.entry(rule).or_insert_with_key(|(cron, timezone)| Rule::parse(cron, timezone).ok()?.after(found.now));
        let next_at = (*first)?;
        let is_later = schedule.next_at.is_none_or(|stored| stored > next_at);
        is_later.then_some(Rescheduled { schedule_id: schedule.schedule_id, updated_at: schedule.updated_at, next_at })
    });
    too_late.collect()
}
