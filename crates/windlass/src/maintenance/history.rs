//! Exporting history to files, and importing it from them.

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

/// Which history to export; what is empty or `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct HistoryFilter {
    /// Of any of these types, by exact name or prefix ending in `*`.
    pub types: Vec<String>,
    /// Published at this instant or later.
    pub from: Option<Timestamp>,
    /// Published before this instant.
    pub until: Option<Timestamp>,
}

/// What was exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ExportedHistory {
    /// Events.
    pub events: u64,
    /// Their attempts.
    pub attempts: u64,
    /// Files that were written.
    pub files: u64,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ImportedHistory {
    /// Files that were read.
    pub files: u64,
    /// Files that were never finished, and left out.
    pub unfinished: u64,
    /// Events that are new here.
    pub events: u64,
    /// Attempts that are new here.
    pub attempts: u64,
    /// Events that were here already.
    pub known: u64,
    /// Events that were left out, since their id belongs to another event here.
    pub clashes: u64,
    /// The first of those.
    pub first_clash: Option<i64>,
}

/// An event that is stored already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredEvent {
    pub namespace: String,
    pub event_type: String,
    pub created_at: Timestamp,
}

/// Where an event belongs that comes from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImportTarget {
    New,
    /// It is here already.
    Known,
    /// Another event has its id.
    Taken,
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
            Some(_) => ImportTarget::Taken,
        }
    }
}

/// What stands for the lane of an attempt from a file: the deliveries of an event have one each, and perhaps none of the
/// subscriptions is here. Real ones are never negative.
pub(crate) fn stand_in_id(subscription: &str) -> i64 {
    let digest = Sha256::digest(subscription);
    i64::from_le_bytes(std::array::from_fn(|at| digest[at])) | i64::MIN
}

impl PastEvent {
    /// When each of its deliveries ended; one that nothing is known of when it was published.
    pub fn ends(&self) -> Vec<(i64, String, Timestamp)> {
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

    /// Refuses what no store could keep.
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

/// How many events are read or stored at once.
const BATCH: usize = 500;

impl Queue {
    /// Writes this namespace's history to files in a folder: every event that matches and is neither live nor a dead
    /// letter, with its attempts. `progress` is told how far it is, out of how much.
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

    /// Stores the history in a folder's files – those of one namespace, if one is named – as history: nothing of it is
    /// delivered. Events keep their ids; those that are here already are passed over, and so are those whose id belongs
    /// to another event here. Namespaces that do not exist are created. `progress` is told how many events are done, out
    /// of how many.
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
        let mut there: HashSet<String> = HashSet::new();
        for (path, manifest) in files {
            let queue = self.in_namespace(&manifest.namespace)?;
            if there.insert(manifest.namespace.clone()) {
                queue.create_unless_there().await?;
            }
            let mut reader = blocking(move || Reader::open(&path, &manifest)).await?;
            loop {
                let (back, events) = blocking(move || reader.next(BATCH).map(|events| (reader, events))).await?;
                reader = back;
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

    async fn create_unless_there(&self) -> Result<()> {
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
    fn an_event_is_known_by_more_than_its_id() {
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
            (Some(StoredEvent { namespace: "other".into(), ..stored.clone() }), ImportTarget::Taken),
            (Some(StoredEvent { event_type: "u".into(), ..stored.clone() }), ImportTarget::Taken),
            (Some(StoredEvent { created_at: later, ..stored }), ImportTarget::Taken),
        ];
        for (stored, place) in cases {
            assert_eq!(ImportTarget::of(&event, stored.as_ref()), place, "{stored:?}");
        }
        let past = PastEvent { event, attempts: Vec::new() };
        assert_eq!(past.ends(), [(7, MAIN.to_owned(), at)]);
        assert!(stand_in_id("a") < 0 && stand_in_id("b") < 0 && stand_in_id("a") != stand_in_id("b"));
    }
}
