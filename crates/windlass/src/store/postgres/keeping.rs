//! How this store keeps history: each call goes to the file of its verb.

use async_trait::async_trait;

use super::again::despite_deadlocks;
use super::{PgStore, drop_month, history, partitions, retain, seen};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::archive::PastEvent;
use crate::maintenance::clock_check::Seen;
use crate::maintenance::history::HistoryFilter;
use crate::maintenance::months::Part;
use crate::maintenance::retention::{Ended, Leftover, Mark, Walk, WalkPosition};
use crate::store::{
    AllRules, DeletedHistory, DropOutcome, EndedPage, ExpiredMonths, HistoryStore, Imported, MonthStore, Retain,
};

#[async_trait]
impl HistoryStore for PgStore {
    fn retain_batch(&self) -> usize {
        retain::BATCH
    }

    fn by_months(&self) -> Option<&dyn MonthStore> {
        Some(self)
    }

    async fn seen(&self) -> Result<Option<Seen>> {
        seen::seen(self).await
    }

    async fn note_seen(&self, seen: Seen) -> Result<()> {
        seen::note(self, seen).await
    }

    async fn marks(&self, namespace: &str, walk: Walk) -> Result<Vec<Mark>> {
        retain::marks(self, namespace, walk).await
    }

    async fn ended(
        &self,
        namespace: &str,
        walk: Walk,
        from: WalkPosition,
        until: Timestamp,
        limit: usize,
        _now: Timestamp,
    ) -> Result<EndedPage> {
        retain::ended(self, namespace, walk, from, until, limit).await
    }

    async fn leftovers(&self, namespace: &str, rules: i64, limit: usize, now: Timestamp) -> Result<Vec<Leftover>> {
        retain::leftovers(self, namespace, rules, limit, now).await
    }

    async fn retain(&self, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>> {
        despite_deadlocks!(retain::retain(self, namespace, retain))
    }

    async fn history_of(&self, namespace: &str, due: &[Ended]) -> Result<Vec<PastEvent>> {
        history::history_of(self, namespace, due).await
    }

    async fn history_page(
        &self,
        namespace: &str,
        filter: &HistoryFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PastEvent>> {
        history::page(self, namespace, filter, after, limit).await
    }

    async fn newest_event(&self, namespace: &str) -> Result<i64> {
        history::newest(self, namespace).await
    }

    async fn import_history(&self, namespace: &str, events: &[PastEvent]) -> Result<Imported> {
        despite_deadlocks!(history::import(self, namespace, events))
    }
}

#[async_trait]
impl MonthStore for PgStore {
    async fn rules(&self) -> Result<AllRules> {
        retain::rules(self).await
    }

    async fn months(&self) -> Result<Vec<Part>> {
        partitions::months(self).await
    }

    async fn add_month(&self, part: Part, ahead: bool) -> Result<bool> {
        partitions::add_month(self, part, ahead).await
    }

    async fn drop_month(&self, part: Part, over: &ExpiredMonths) -> Result<DropOutcome> {
        drop_month::drop_month(self, part, over).await
    }

    async fn finish_dropping(&self) -> Result<usize> {
        partitions::finish_dropping(self).await
    }

    async fn delete_strays(&self, over: &ExpiredMonths) -> Result<Option<usize>> {
        despite_deadlocks!(partitions::delete_strays(self, over))
    }
}
