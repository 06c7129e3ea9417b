//! Searching events. Walks use indexes from the newest event on, whatever the statistics say.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Connection as _, PgConnection, Postgres};

use super::error::from_sqlx;
use super::inspect::{SNAPSHOT, deliveries};
use super::row::get;
use super::{PgStore, fix_planner};
use crate::error::Result;
use crate::observe::search::SearchResult;
use crate::store::{EventFilter, SearchStep, SearchStore, Source};

const BY_INDEX: &str = concat!("BEGIN; ", fix_planner!("SET LOCAL"));

macro_rules! events_below {
    () => {
        "(SELECT e.id FROM windlass.events e WHERE e.namespace = $1 AND e.id < $2 ORDER BY e.id DESC LIMIT $3) AS e"
    };
}

pub(super) const ALL: &str = concat!("SELECT e.id AS event_id, true AS matches FROM ", events_below!());

// `BETWEEN` an id and itself with its ORDER BY leaves the planner one index.
pub(super) const MATCHED: &str = concat!(
    "SELECT e.id AS event_id, q.found IS NOT NULL OR a.found IS NOT NULL AS matches FROM ",
    events_below!(),
    "
LEFT JOIN LATERAL (SELECT true AS found FROM windlass.event_queue q
    WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s WHERE s.namespace = $1 AND s.subscription = $4)
      AND q.event_id BETWEEN e.id AND e.id
    ORDER BY q.event_id LIMIT 1) AS q ON true
LEFT JOIN LATERAL (SELECT true AS found FROM windlass.event_attempts a
    WHERE a.event_id BETWEEN e.id AND e.id AND a.namespace = $1 AND a.subscription = $4
    ORDER BY a.event_id LIMIT 1) AS a ON true
ORDER BY e.id DESC"
);

pub(super) const LIVE: &str = concat!(
    "SELECT e.id AS event_id, q.found IS NOT NULL AS matches FROM ",
    events_below!(),
    "
LEFT JOIN LATERAL (SELECT true AS found FROM windlass.event_queue q
    WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s WHERE s.namespace = $1 AND s.subscription = $4)
      AND q.event_id BETWEEN e.id AND e.id
      AND (q.lease IS NOT NULL) = ($5 = 'PROCESSING')
    ORDER BY q.event_id LIMIT 1) AS q ON true
ORDER BY e.id DESC"
);

// No delivery ends twice in one of these states.
pub(super) const ENDED: &str = concat!(
    "SELECT e.id AS event_id, a.found IS NOT NULL AS matches FROM ",
    events_below!(),
    "
LEFT JOIN LATERAL (SELECT true AS found FROM windlass.event_attempts a
    WHERE a.event_id BETWEEN e.id AND e.id AND a.namespace = $1 AND a.subscription = $4 AND a.action = $5
    ORDER BY a.event_id LIMIT 1) AS a ON true
ORDER BY e.id DESC"
);

pub(super) const DEAD: &str = "
SELECT d.event_id, d.status = $5 AS matches FROM windlass.dead_letters d
WHERE d.namespace = $1 AND d.subscription = $4 AND d.event_id < $2 ORDER BY d.event_id DESC LIMIT $3";

// Reads no more rows than requested. The caller filters leased rows.
pub(super) const PENDING_IDS: &str = "
SELECT q.event_id, q.lease IS NULL AS matches FROM windlass.event_queue q
WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s
                           WHERE s.namespace = $1 AND s.subscription = $2)
ORDER BY q.event_id LIMIT $3";

const LEASED_IDS: &str = "
SELECT q.event_id, true AS matches
FROM (SELECT s.subscription_id FROM windlass.subscriptions s WHERE s.namespace = $1 AND s.subscription = $2) AS s
CROSS JOIN LATERAL (
    SELECT l.lease, l.first_id, l.last_id FROM windlass.leases l
    WHERE l.subscription_id = s.subscription_id ORDER BY l.claimed_at OFFSET 0) AS l
CROSS JOIN LATERAL (
    SELECT q.event_id FROM windlass.event_queue q
    WHERE q.subscription_id = s.subscription_id AND q.event_id BETWEEN l.first_id AND l.last_id AND q.lease = l.lease
    ORDER BY q.event_id OFFSET 0) AS q
LIMIT $3";

const EVENT_OF_KEY: &str = "SELECT event_id FROM windlass.event_keys WHERE namespace = $1 AND key = $2";

pub(super) const MATCHING: &str = "
SELECT e.id FROM windlass.events e
WHERE e.namespace = $1 AND e.id = ANY($2)
  AND (cardinality($3::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($3::text[]) AS p
        WHERE e.event_type = p OR (right(p, 1) = '*' AND starts_with(e.event_type, left(p, -1)))))
  AND (cardinality($4::text[]) = 0 OR regexp_split_to_array(btrim(e.tags, E' \\t\\n\\f\\r'), '\\s*,\\s*') && $4::text[])
  AND ($5::text IS NULL OR e.group_id = $5)
  AND ($6::text IS NULL OR e.key = $6)
  AND ($7::timestamptz IS NULL OR e.created_at >= $7)
  AND ($8::timestamptz IS NULL OR e.created_at < $8)
  AND ($9::text IS NULL OR e.title ILIKE $9 OR e.event_type ILIKE $9 OR e.description ILIKE $9 OR e.payload::text ILIKE $9)";

const HEADS: &str = "
SELECT e.id, e.event_type, e.title, e.tags, e.group_id, e.created_at
FROM windlass.events e WHERE e.namespace = $1 AND e.id = ANY($2)";

/// Escapes the text as a LIKE pattern.
fn pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    pattern.push('%');
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

async fn by_index(store: &PgStore, query: Query<'_>) -> Result<Vec<PgRow>> {
    let mut connection = store.reads.get().await?;
    let mut tx = connection.begin_with(BY_INDEX).await.map_err(from_sqlx)?;
    let rows = query.fetch_all(&mut *tx).await.map_err(from_sqlx)?;
    tx.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(rows)
}

/// The ids of the rows in the requested state.
fn requested_ids(rows: &[PgRow]) -> Result<Vec<i64>> {
    let mut ids = Vec::with_capacity(rows.len());
    for row in rows {
        if get(row, "matches")? {
            ids.push(get(row, "event_id")?);
        }
    }
    Ok(ids)
}

#[async_trait]
impl SearchStore for PgStore {
    async fn walk(&self, namespace: &str, source: &Source, before: i64, rows: usize) -> Result<SearchStep> {
        let query = |sql| sqlx::query(sql).bind(namespace).bind(before).bind(rows as i64);
        let query = match source {
            Source::All => query(ALL),
            Source::Matched { subscription } => query(MATCHED).bind(subscription),
            Source::Live { subscription, held: false } => query(LIVE).bind(subscription).bind("PENDING"),
            Source::Live { subscription, held: true } => query(LIVE).bind(subscription).bind("PROCESSING"),
            Source::Dead { subscription, status } => query(DEAD).bind(subscription).bind(status.as_str()),
            Source::Ended { subscription, status } => query(ENDED).bind(subscription).bind(status.as_str()),
        };
        let found = by_index(self, query).await?;
        let last = found.last().filter(|_| found.len() == rows);
        let next = last.map(|row| get(row, "event_id")).transpose()?;
        Ok(SearchStep { ids: requested_ids(&found)?, looked_at: found.len(), next })
    }

    async fn live_ids(&self, namespace: &str, subscription: &str, held: bool, most: usize) -> Result<Option<Vec<i64>>> {
        let sql = if held { LEASED_IDS } else { PENDING_IDS };
        let query = sqlx::query(sql).bind(namespace).bind(subscription).bind(most as i64 + 1);
        let found = by_index(self, query).await?;
        if found.len() > most {
            return Ok(None);
        }
        Ok(Some(requested_ids(&found)?))
    }

    async fn event_of_key(&self, namespace: &str, key: &str) -> Result<Option<i64>> {
        let mut connection = self.reads.get().await?;
        let query = sqlx::query_scalar(EVENT_OF_KEY).bind(namespace).bind(key);
        let found = query.fetch_optional(&mut *connection).await.map_err(from_sqlx)?;
        connection.done();
        Ok(found)
    }

    async fn matching(&self, namespace: &str, contents: &EventFilter, mut ids: Vec<i64>) -> Result<Vec<i64>> {
        let query = sqlx::query(MATCHING)
            .bind(namespace)
            .bind(&ids)
            .bind(&contents.types)
            .bind(&contents.tags)
            .bind(&contents.group_id)
            .bind(&contents.key)
            .bind(contents.created_from)
            .bind(contents.created_before)
            .bind(contents.text.as_deref().map(pattern));
        let rows = by_index(self, query).await?;
        let requested_ids: HashSet<i64> = rows.iter().map(|row| get(row, "id")).collect::<Result<_>>()?;
        ids.retain(|id| requested_ids.contains(id));
        Ok(ids)
    }

    async fn found(&self, namespace: &str, subscription: &str, ids: &[i64]) -> Result<Vec<SearchResult>> {
        let mut connection = self.reads.get().await?;
        let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
        let found = found(&mut snapshot, namespace, subscription, ids).await?;
        snapshot.commit().await.map_err(from_sqlx)?;
        connection.done();
        Ok(found)
    }
}

async fn found(
    connection: &mut PgConnection,
    namespace: &str,
    subscription: &str,
    ids: &[i64],
) -> Result<Vec<SearchResult>> {
    let heads = sqlx::query(HEADS).bind(namespace).bind(ids).fetch_all(&mut *connection).await.map_err(from_sqlx)?;
    let mut deliveries = deliveries(connection, namespace, ids).await?;
    let mut found = HashMap::with_capacity(heads.len());
    for row in &heads {
        let event_id: i64 = get(row, "id")?;
        let of_event = deliveries.remove(&event_id).unwrap_or_default();
        let Some(delivery) = of_event.into_iter().find(|delivery| delivery.subscription == subscription) else {
            continue;
        };
        let event = SearchResult {
            event_id,
            event_type: get(row, "event_type")?,
            title: get(row, "title")?,
            tags: get(row, "tags")?,
            group_id: get(row, "group_id")?,
            created_at: get(row, "created_at")?,
            delivery,
        };
        found.insert(event_id, event);
    }
    Ok(ids.iter().filter_map(|id| found.remove(id)).collect())
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn search_text_is_matched_literally() {
        assert_eq!(pattern("a"), "%a%");
        assert_eq!(pattern(r"50%_\"), r"%50\%\_\\%");
    }
}
