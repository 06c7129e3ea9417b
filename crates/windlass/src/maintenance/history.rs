//! Exports history to archive files and imports it from them. The file format is in `archive`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::names;
use crate::event::{Event, check_json, tag_set};
use crate::maintenance::archive::{Archive, Manifest, PastEvent, Reader, blocking, manifests};
use crate::observe::inspect::check_types;
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::topology::MAIN;

/// Which history to export. Empty or `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct HistoryFilter {
    /// Only events of these types: exact names, or prefixes ending in `*`.
    pub types: Vec<String>,
    /// Only events published at this time or later.
    pub from: Option<Timestamp>,
    /// Only events published before this time.
    pub until: Option<Timestamp>,
}

/// The result of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExportedHistory {
    /// Exported events.
    pub events: u64,
    /// Exported attempts.
    pub attempts: u64,
    /// Written files.
    pub files: u64,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ImportedHistory {
    /// Imported files.
    pub files: u64,
    /// Incomplete files, which were skipped.
    pub unfinished: u64,
    /// Events that were added.
    pub events: u64,
    /// Attempts that were added.
    pub attempts: u64,
    /// Events that already existed.
    pub known: u64,
    /// Events that were skipped because another event in this database has the same id.
    pub clashes: u64,
    /// The id of the first of those.
    pub first_clash: Option<i64>,
}

/// The identity of an event that is already stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredEvent {
    pub namespace: String,
    pub event_type: String,
    pub created_at: Timestamp,
}

/// How an event from a file relates to the stored event with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImportTarget {
    New,
    /// The event already exists.
    Known,
    /// Another event has the same id.
    IdInUse,
}

impl ImportTarget {
    pub fn of(event: &Event, stored: Option<&StoredEvent>) -> ImportTarget {
        match stored {
            None => ImportTarget::New,
            Some(stored)
                if (&stored.namespace, &stored.event_type, stored.created_at)
                    == (&event.namespace, &event.event_type, event.created_at) =>
            {
                ImportTarget::Known
            }
            Some(_) => ImportTarget::IdInUse,
        }
    }
}

/// A placeholder for the lane of an imported attempt, one per subscription. The subscription may not exist in this
/// database. Real lane ids are never negative.
pub(crate) fn placeholder_lane_id(subscription: &str) -> i64 {
    let digest = Sha256::digest(subscription);
    i64::from_le_bytes(std::array::from_fn(|index| digest[index])) | i64::MIN
}

impl PastEvent {
    /// The event id, subscription and end of each delivery. An event without attempts counts as a delivery to `main`
    /// that ended when it was published.
    pub fn delivery_ends(&self) -> Vec<(i64, String, Timestamp)> {
        let mut ends: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for attempt in &self.attempts {
            let end = ends.entry(&attempt.subscription).or_insert(attempt.finished_at);
            *end = attempt.finished_at.max(*end);
        }
        if ends.is_empty() {
            ends.insert(MAIN, self.event.created_at);
        }
        ends.into_iter().map(|(subscription, at)| (self.event.id, subscription.to_owned(), at)).collect()
    }

    /// Rejects data that a store could not hold.
    fn check(&self, limits: &Limits) -> Result<()> {
        let event = &self.event;
        names::check_type("type", &event.event_type)?;
        tag_set("tags", &event.tags, limits)?;
        for (field, text) in [("title", &event.title), ("description", &event.description)] {
            if let Some(text) = text {
                names::check_text(field, text, usize::MAX)?;
            }
        }
        for (field, name) in [("group_id", &event.group_id), ("key", &event.key), ("producer", &event.producer)] {
            if let Some(name) = name {
                names::check(field, name)?;
            }
        }
        check_json("payload", event.payload.get(), usize::MAX, limits)?;
        for attempt in &self.attempts {
            names::check_identifier("subscription", &attempt.subscription)?;
            for text in [&attempt.worker_id, &attempt.error_message].into_iter().flatten() {
                names::check_text("attempts", text, usize::MAX)?;
            }
        }
        Ok(())
    }
}

/// How many events one statement reads or stores.
const BATCH: usize = 500;

impl Queue {
    /// Writes this namespace's history to files in a folder: every matching event that is neither pending nor
    /// processing nor a dead letter, with its attempts. `progress` is called with the progress and the total.
    pub async fn export_history(
        &self,
        to: &Path,
        filter: HistoryFilter,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<ExportedHistory> {
        check_types("types", &filter.types, self.limits())?;
        self.reload().await?;
        let now = self.store().now(self.now()).await?;
        let newest = self.store().newest_event(self.namespace()).await?.unsigned_abs();
        let mut archive = Archive::new(to, self.namespace(), now);
        let mut after = 0;
        loop {
            let page = self.store().history_page(self.namespace(), &filter, after, BATCH).await?;
            let Some(last) = page.last() else { break };
            after = last.event.id;
            archive = write(archive, page).await?;
            progress(after.unsigned_abs().min(newest), newest);
        }
        let written = blocking(move || archive.close()).await?;
        progress(newest, newest);
        let sum = |of: fn(&Manifest) -> u64| written.iter().map(of).sum();
        Ok(ExportedHistory {
            events: sum(|manifest| manifest.events),
            attempts: sum(|manifest| manifest.attempts),
            files: written.len() as u64,
        })
    }

    /// Imports the history in a folder's files, or only that of one namespace. Imported events are not delivered. They
    /// keep their ids; events that already exist, or whose id belongs to another event, are skipped. Missing namespaces
    /// are created. `progress` is called with the number of processed events and the total.
    pub async fn import_history(
        &self,
        from: &Path,
        namespace: Option<&str>,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<ImportedHistory> {
        let folder = from.to_owned();
        let (mut files, unfinished) = blocking(move || manifests(&folder)).await?;
        files.retain(|(_, manifest)| namespace.is_none_or(|namespace| manifest.namespace == namespace));
        let total = files.iter().map(|(_, manifest)| manifest.events).sum();
        let mut imported = ImportedHistory { unfinished: unfinished as u64, ..ImportedHistory::default() };
        let mut ensured: HashSet<String> = HashSet::new();
        for (path, manifest) in files {
            let queue = self.in_namespace(&manifest.namespace)?;
            if ensured.insert(manifest.namespace.clone()) {
                queue.create_if_missing().await?;
            }
            let mut reader = blocking(move || Reader::open(&path, &manifest)).await?;
            loop {
                let (returned, events) = blocking(move || reader.next(BATCH).map(|events| (reader, events))).await?;
                reader = returned;
                if events.is_empty() {
                    break;
                }
                queue.import_batch(&events, &mut imported).await?;
                progress(imported.events + imported.known + imported.clashes, total);
            }
            imported.files += 1;
        }
        Ok(imported)
    }

    async fn create_if_missing(&self) -> Result<()> {
        match self.reload().await {
            Err(Error::NamespaceNotFound { .. }) => self.put_namespace(self.namespace(), None, None).await.map(drop),
            found => found.map(drop),
        }
    }

    async fn import_batch(&self, events: &[PastEvent], imported: &mut ImportedHistory) -> Result<()> {
        for (index, past) in events.iter().enumerate() {
            let in_item = |error| Error::InItem { what: "events", index, error: Box::new(error) };
            past.check(self.limits()).map_err(in_item)?;
        }
        let batch = self.store().import_history(self.namespace(), events).await?;
        imported.events += batch.events;
        imported.attempts += batch.attempts;
        imported.known += batch.known;
        imported.clashes += batch.clashes.len() as u64;
        imported.first_clash = imported.first_clash.or(batch.clashes.first().copied());
        Ok(())
    }
}

pub(crate) async fn write(mut archive: Archive, events: Vec<PastEvent>) -> Result<Archive> {
    blocking(move || archive.write(&events).map(|()| archive)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::to_raw;

    #[test]
    fn stored_event_is_identified_by_more_than_its_id() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let event = Event {
            id: 7,
            namespace: "ns".into(),
            event_type: "t".into(),
            title: None,
            description: None,
            tags: String::new(),
            payload: to_raw("payload", &1).unwrap(),
            group_id: None,
            key: None,
            priority: 0,
            producer: None,
            scheduled_task_id: None,
            run_at: None,
            expires_at: None,
            metadata: None,
            created_at: at,
        };
        let stored = StoredEvent { namespace: "ns".into(), event_type: "t".into(), created_at: at };
        let later = at + chrono::TimeDelta::microseconds(1);
        let cases = [
            (None, ImportTarget::New),
            (Some(stored.clone()), ImportTarget::Known),
            (Some(StoredEvent { namespace: "other".into(), ..stored.clone() }), ImportTarget::IdInUse),
            (Some(StoredEvent { event_type: "u".into(), ..stored.clone() }), ImportTarget::IdInUse),
            (Some(StoredEvent { created_at: later, ..stored }), ImportTarget::IdInUse),
        ];
        for (stored, target) in cases {
            assert_eq!(ImportTarget::of(&event, stored.as_ref()), target, "{stored:?}");
        }
        let past = PastEvent { event, attempts: Vec::new() };
        assert_eq!(past.delivery_ends(), [(7, MAIN.to_owned(), at)]);
        assert!(
            placeholder_lane_id("a") < 0
                && placeholder_lane_id("b") < 0
                && placeholder_lane_id("a") != placeholder_lane_id("b")
        );
    }
}
