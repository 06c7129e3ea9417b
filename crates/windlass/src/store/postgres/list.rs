//! Lists of events, with how many there are in all. They may be large: connections with the planner's usual settings.

use sqlx::Connection as _;

use super::PgStore;
use super::error::from_sqlx;
use super::inspect::{SNAPSHOT, views};
use super::row::get;
use crate::error::Result;
use crate::event::delivery::Status;
use crate::observe::inspect::{EventView, ListFilter, Page};
use crate::topology::MAIN;

/// Where the events in some state are found: how many, and their ids, the newest first. They bind namespace,
/// subscription, state, types and tags; the ids also limit and offset.
struct Source {
    total: &'static str,
    ids: &'static str,
}

macro_rules! source {
    ($id:literal, $($from:expr),+) => {
        Source {
            total: concat!("SELECT count(*) AS total FROM ", $($from),+),
            ids: concat!("SELECT ", $id, " AS id FROM ", $($from),+, " ORDER BY 1 DESC LIMIT $6 OFFSET $7"),
        }
    };
}

/// What is not needed is not looked at, but has a type.
macro_rules! unused {
    () => {
        " AND $2::text IS NOT NULL AND ($3::text IS NULL OR true) AND $4::text[] IS NOT NULL AND $5::text[] IS NOT NULL"
    };
}

/// Events themselves know their type and tags.
macro_rules! of_kind {
    () => {
        " AND ($3::text IS NULL OR true)
  AND (cardinality($4::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($4::text[]) AS p
        WHERE e.event_type = p OR (right(p, 1) = '*' AND starts_with(e.event_type, left(p, -1)))))
  AND (cardinality($5::text[]) = 0 OR regexp_split_to_array(btrim(e.tags, E' \\t\\n\\f\\r'), '\\s*,\\s*') && $5::text[])"
    };
}

/// Of live deliveries, the lane has the tags.
macro_rules! lanes {
    () => {
        "(
        SELECT l.lane_id FROM windlass.lanes l
        WHERE l.namespace = $1 AND l.subscription = $2
          AND (cardinality($4::text[]) = 0 OR EXISTS (
                SELECT FROM unnest($4::text[]) AS p
                WHERE l.event_type = p OR (right(p, 1) = '*' AND starts_with(l.event_type, left(p, -1)))))
          AND (cardinality($5::text[]) = 0 OR string_to_array(l.tags, ',') && $5::text[]))"
    };
}

/// Of finished deliveries, the row has the type and the event has the tags.
macro_rules! of_finished {
    () => {
        " AND (cardinality($4::text[]) = 0 OR EXISTS (
        SELECT FROM unnest($4::text[]) AS p
        WHERE d.event_type = p OR (right(p, 1) = '*' AND starts_with(d.event_type, left(p, -1)))))
  AND (cardinality($5::text[]) = 0 OR EXISTS (
        SELECT FROM windlass.events e
        WHERE e.namespace = $1 AND e.id = d.event_id
          AND regexp_split_to_array(btrim(e.tags, E' \\t\\n\\f\\r'), '\\s*,\\s*') && $5::text[]))"
    };
}

/// Told by the index alone.
const ALL: Source = source!("e.id", "windlass.events e WHERE e.namespace = $1", unused!());
const ALL_OF_KIND: Source =
    source!("e.id", "windlass.events e WHERE e.namespace = $1 AND $2::text IS NOT NULL", of_kind!());

/// Of a subscription other than `main`, which is told of everything. A dead letter has an attempt.
const TOLD: Source = source!(
    "e.id",
    "windlass.events e WHERE e.namespace = $1
  AND (EXISTS (SELECT FROM windlass.event_queue q
               WHERE q.subscription_id = (SELECT s.subscription_id FROM windlass.subscriptions s
                                          WHERE s.namespace = $1 AND s.subscription = $2) AND q.event_id = e.id)
       OR EXISTS (SELECT FROM windlass.event_attempts a
                  WHERE a.event_id = e.id AND a.namespace = $1 AND a.subscription = $2))",
    of_kind!()
);

/// Always by lanes: others may have any number of deliveries.
const LIVE: Source = source!(
    "event_id",
    "windlass.event_queue WHERE namespace = $1 AND subscription = $2 AND (lease IS NULL) = ($3 = 'PENDING')
      AND lane_id = ANY(ARRAY",
    lanes!(),
    ")"
);

const DEAD: Source = source!(
    "event_id",
    "windlass.dead_letters d WHERE d.namespace = $1 AND d.subscription = $2 AND d.status = $3",
    of_finished!()
);

/// No delivery ends twice in one of these states.
const ENDED: Source = source!(
    "event_id",
    "windlass.event_attempts d WHERE d.namespace = $1 AND d.subscription = $2 AND d.action = $3",
    of_finished!()
);

fn source(filter: &ListFilter, subscription: &str) -> Source {
    let of_any_kind = filter.types.is_empty() && filter.tags.is_empty();
    match filter.status {
        None if subscription == MAIN && of_any_kind => ALL,
        None if subscription == MAIN => ALL_OF_KIND,
        None => TOLD,
        Some(Status::Pending | Status::Processing) => LIVE,
        Some(Status::Failed | Status::Expired) => DEAD,
        Some(Status::Completed | Status::CompletedWithErrors | Status::Cancelled) => ENDED,
    }
}

pub(super) async fn list(store: &PgStore, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
    let subscription = filter.subscription.as_deref().unwrap_or(MAIN);
    let source = source(filter, subscription);
    let query = |sql| {
        let query = sqlx::query(sql).bind(namespace).bind(subscription).bind(filter.status.map(Status::as_str));
        query.bind(&filter.types).bind(&filter.tags)
    };
    let mut connection = store.reads.get().await?;
    let mut snapshot = connection.begin_with(SNAPSHOT).await.map_err(from_sqlx)?;
    let ids = query(source.ids).bind(filter.limit as i64).bind(filter.offset as i64);
    let ids = ids.fetch_all(&mut *snapshot).await.map_err(from_sqlx)?;
    let ids = ids.iter().map(|row| get(row, "id")).collect::<Result<Vec<i64>>>()?;
    let total = query(source.total).fetch_one(&mut *snapshot).await.map_err(from_sqlx)?;
    let items = views(&mut snapshot, namespace, &ids).await?.into_iter().flatten().collect();
    snapshot.commit().await.map_err(from_sqlx)?;
    connection.done();
    Ok(Page { items, total: get::<i64>(&total, "total")?.unsigned_abs() })
}
