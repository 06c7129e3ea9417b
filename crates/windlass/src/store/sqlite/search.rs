//! Searching events: walks from the newest on, and filters.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, inspect, row};
use crate::clock::from_micros;
use crate::error::Result;
use crate::observe::search::SearchResult;
use crate::store::{EventFilter, SearchStep, SearchStore, Source};
use crate::topology::lanes::split_tags;
use crate::topology::wants;

macro_rules! events_below {
    ($meant:literal) => {
        concat!(
            "SELECT e.id, ",
            $meant,
            " FROM events e INDEXED BY events_by_namespace WHERE e.namespace = ?1 AND e.id < ?2
              ORDER BY e.id DESC LIMIT ?3"
        )
    };
}

// Compares unused parameters with themselves, because all statements bind the same ones.
const ALL: &str = events_below!("?4 IS ?4 AND ?5 IS ?5");

const TOLD: &str = events_below!(
    "?5 IS ?5 AND (EXISTS (SELECT 1 FROM event_queue WHERE event_id = e.id AND subscription_id =
                           (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?4))
         OR EXISTS (SELECT 1 FROM event_attempts WHERE event_id = e.id AND subscription = ?4))"
);

const LIVE: &str = events_below!(
    "EXISTS (SELECT 1 FROM event_queue
             WHERE subscription_id =
                   (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?4)
               AND event_id = e.id AND (lease IS NOT NULL) = (?5 = 'PROCESSING'))"
);

/// No delivery ends twice in one of these states.
const ENDED: &str = events_below!(
    "EXISTS (SELECT 1 FROM event_attempts INDEXED BY event_attempts_by_event
             WHERE event_id = e.id AND subscription = ?4 AND action = ?5)"
);

const DEAD: &str = "
SELECT event_id, status = ?5 FROM dead_letters INDEXED BY dead_letters_by_event
WHERE namespace = ?1 AND subscription = ?4 AND event_id < ?2 ORDER BY event_id DESC LIMIT ?3";

fn walk(conn: &Connection, namespace: &str, source: &Source, before: i64, rows: usize) -> Result<SearchStep> {
    let (sql, subscription, status) = match source {
        Source::All => (ALL, "", ""),
        Source::Matched { subscription } => (TOLD, subscription.as_str(), ""),
        Source::Live { subscription, held: false } => (LIVE, subscription.as_str(), "PENDING"),
        Source::Live { subscription, held: true } => (LIVE, subscription.as_str(), "PROCESSING"),
        Source::Dead { subscription, status } => (DEAD, subscription.as_str(), status.as_str()),
        Source::Ended { subscription, status } => (ENDED, subscription.as_str(), status.as_str()),
    };
    let mut select = conn.prepare_cached(sql)?;
    let mut found = select.query((namespace, before, rows as i64, subscription, status))?;
    let mut walked = SearchStep::default();
    while let Some(row) = found.next()? {
        let id: i64 = row.get(0)?;
        (walked.looked_at, walked.next) = (walked.looked_at + 1, Some(id));
        if row.get(1)? {
            walked.ids.push(id);
        }
    }
    walked.next.take_if(|_| walked.looked_at < rows);
    Ok(walked)
}

const FREE_IDS: &str = "
SELECT event_id FROM event_queue
WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)
  AND lease IS NULL LIMIT ?3";

const HELD_IDS: &str = "
SELECT event_id FROM event_queue INDEXED BY event_queue_leased
WHERE subscription_id = (SELECT subscription_id FROM subscriptions WHERE namespace = ?1 AND subscription = ?2)
  AND lease IS NOT NULL LIMIT ?3";

const EVENT_OF_KEY: &str = "SELECT event_id FROM event_keys WHERE namespace = ?1 AND key = ?2";

const CONTENTS: &str = "
SELECT event_type, tags, group_id, key, created_at, title, description, payload FROM events WHERE id = ?1 AND namespace = ?2";

const HEAD: &str = "
SELECT event_type, title, tags, group_id, created_at FROM events WHERE id = ?1 AND namespace = ?2";

/// `text` is in lower case.
fn matches(row: &Row, wanted: &EventFilter, text: Option<&str>) -> rusqlite::Result<bool> {
    let (created_at, tags) = (from_micros(row.get(4)?), row.get_ref(1)?.as_str()?);
    let tags: Vec<String> = split_tags(tags).iter().map(|tag| tag.trim().to_owned()).collect();
    let equal = |index: usize, name: &Option<String>| match name {
        Some(name) => Ok::<_, rusqlite::Error>(row.get_ref(index)?.as_str_or_null()? == Some(name)),
        None => Ok(true),
    };
    let plain = wants(&wanted.types, &wanted.tags, row.get_ref(0)?.as_str()?, &tags)
        && equal(2, &wanted.group_id)?
        && equal(3, &wanted.key)?
        && wanted.created_from.is_none_or(|from| created_at >= from)
        && wanted.created_before.is_none_or(|before| created_at < before);
    let Some(text) = text.filter(|_| plain) else { return Ok(plain) };
    for index in [0, 5, 6, 7] {
        let part = row.get_ref(index)?.as_str_or_null()?;
        if part.is_some_and(|part| part.to_lowercase().contains(text)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn matching(conn: &Connection, namespace: &str, wanted: &EventFilter, mut ids: Vec<i64>) -> Result<Vec<i64>> {
    let mut select = conn.prepare_cached(CONTENTS)?;
    let text = wanted.text.as_ref().map(|text| text.to_lowercase());
    let mut failed = None;
    ids.retain(|id| {
        let found = select.query_row((id, namespace), |row| matches(row, wanted, text.as_deref())).optional();
        found.unwrap_or_else(|error| failed.replace(error).and(None)).unwrap_or(false)
    });
    failed.map_or(Ok(ids), |error| Err(error.into()))
}

fn found(conn: &Connection, namespace: &str, subscription: &str, ids: &[i64]) -> Result<Vec<SearchResult>> {
    let mut select = conn.prepare_cached(HEAD)?;
    let mut found = Vec::with_capacity(ids.len());
    for event_id in ids {
        let Some(delivery) = inspect::deliveries(conn, namespace, *event_id)?.remove(subscription) else { continue };
        let event = select.query_row((event_id, namespace), |row| {
            Ok(SearchResult {
                event_id: *event_id,
                event_type: row.get(0)?,
                title: row.get(1)?,
                tags: row.get(2)?,
                group_id: row.get(3)?,
                created_at: row::timestamp(row, 4)?,
                delivery,
            })
        });
        found.extend(event.optional()?);
    }
    Ok(found)
}

#[async_trait]
impl SearchStore for SqliteStore {
    async fn walk(&self, namespace: &str, source: &Source, before: i64, rows: usize) -> Result<SearchStep> {
        let (namespace, source) = (namespace.to_owned(), source.clone());
        self.read(move |conn| walk(conn, &namespace, &source, before, rows)).await
    }

    async fn live_ids(&self, namespace: &str, subscription: &str, held: bool, most: usize) -> Result<Option<Vec<i64>>> {
        let (namespace, subscription) = (namespace.to_owned(), subscription.to_owned());
        self.read(move |conn| {
            let mut select = conn.prepare_cached(if held { HELD_IDS } else { FREE_IDS })?;
            let ids = select.query_map((namespace, subscription, most as i64 + 1), |row| row.get(0))?;
            let ids: Vec<i64> = ids.collect::<rusqlite::Result<_>>()?;
            Ok(Some(ids).filter(|ids| ids.len() <= most))
        })
        .await
    }

    async fn event_of_key(&self, namespace: &str, key: &str) -> Result<Option<i64>> {
        let (namespace, key) = (namespace.to_owned(), key.to_owned());
        self.read(move |conn| {
            let mut select = conn.prepare_cached(EVENT_OF_KEY)?;
            Ok(select.query_row((namespace, key), |row| row.get(0)).optional()?)
        })
        .await
    }

    async fn matching(&self, namespace: &str, contents: &EventFilter, ids: Vec<i64>) -> Result<Vec<i64>> {
        let (namespace, contents) = (namespace.to_owned(), contents.clone());
        self.read(move |conn| matching(conn, &namespace, &contents, ids)).await
    }

    async fn found(&self, namespace: &str, subscription: &str, ids: &[i64]) -> Result<Vec<SearchResult>> {
        let (namespace, subscription, ids) = (namespace.to_owned(), subscription.to_owned(), ids.to_vec());
        self.read(move |conn| found(conn, &namespace, &subscription, &ids)).await
    }
}
