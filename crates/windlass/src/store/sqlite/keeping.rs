//! How this store keeps history: each call goes to the file of its verb.

use async_trait::async_trait;
use rusqlite::Connection;

use super::writer::Durability;
use super::{SqliteStore, history, retain, seen};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::maintenance::archive::PastEvent;
use crate::maintenance::clock_check::Seen;
use crate::maintenance::history::HistoryFilter;
use crate::maintenance::retention::{Ended, Leftover, Mark, Walk, WalkPosition};
use crate::store::{DeletedHistory, EndedPage, HistoryStore, Imported, Retain};

#[async_trait]
impl HistoryStore for SqliteStore {
    fn retain_batch(&self) -> usize {
        retain::BATCH
    }

    async fn seen(&self) -> Result<Option<Seen>> {
        self.read(seen::seen).await
    }

    async fn note_seen(&self, seen: Seen) -> Result<()> {
        self.writer.write(Durability::Relaxed, None, move |conn: &Connection, _| seen::note(conn, seen)).await
    }

    async fn marks(&self, namespace: &str, walk: Walk) -> Result<Vec<Mark>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| retain::marks(conn, &namespace, walk)).await
    }

    async fn ended(
        &self,
        namespace: &str,
        walk: Walk,
        from: WalkPosition,
        until: Timestamp,
        limit: usize,
        now: Timestamp,
    ) -> Result<EndedPage> {
        let (namespace, until, now) = (namespace.to_owned(), until.timestamp_micros(), now.timestamp_micros());
        self.read(move |conn| retain::ended(conn, &namespace, walk, from, until, limit, now)).await
    }

    async fn leftovers(&self, namespace: &str, rules: i64, limit: usize, now: Timestamp) -> Result<Vec<Leftover>> {
        let (namespace, now) = (namespace.to_owned(), now.timestamp_micros());
        self.read(move |conn| retain::leftovers(conn, &namespace, rules, limit, now)).await
    }

    async fn retain(&self, namespace: &str, retain: &Retain) -> Result<Option<DeletedHistory>> {
        let (namespace, retain) = (namespace.to_owned(), retain.clone());
        // What a power cut brings back is deleted again.
        let work = move |conn: &Connection, _| retain::retain(conn, &namespace, &retain);
        self.writer.write(Durability::Relaxed, None, work).await
    }

    async fn history_of(&self, namespace: &str, due: &[Ended]) -> Result<Vec<PastEvent>> {
        let (namespace, due) = (namespace.to_owned(), due.to_vec());
        self.read(move |conn| history::history_of(conn, &namespace, &due)).await
    }

    async fn history_page(
        &self,
        namespace: &str,
        filter: &HistoryFilter,
        after: i64,
        limit: usize,
    ) -> Result<Vec<PastEvent>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| history::page(conn, &namespace, &filter, after, limit)).await
    }

    async fn newest_event(&self, namespace: &str) -> Result<i64> {
        let namespace = namespace.to_owned();
        self.read(move |conn| history::newest(conn, &namespace)).await
    }

    async fn import_history(&self, namespace: &str, events: &[PastEvent]) -> Result<Imported> {
        let (namespace, events) = (namespace.to_owned(), events.to_vec());
        self.write(None, move |conn, _| history::import(conn, &namespace, &events)).await
    }
}
