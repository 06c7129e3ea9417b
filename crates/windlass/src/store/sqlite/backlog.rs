//! How live deliveries stand, by subscription and type.

use rusqlite::{Connection, Row};

use super::row::{self, INFINITY};
use crate::clock::micros;
use crate::error::Result;
use crate::observe::backlog::{LiveCount, PROCESSING_AGES};

// Deliveries that are ready or wait for their group may be many, and are counted in the index alone. Lanes without
// deliveries are included: a type whose deliveries are all done has a depth of 0.
const BACKLOG: &str = "
SELECT subscription, event_type, sum(ready), sum(delayed), sum(retrying), sum(waiting), min(ready_since), min(next_at),
       min(held_since), sum(age_1), sum(age_2), sum(age_3), sum(age_4), sum(age_5)
FROM (
    SELECT subscription, event_type, 0 AS ready, 0 AS delayed, 0 AS retrying, 0 AS waiting, NULL AS ready_since,
           NULL AS next_at, NULL AS held_since, 0 AS age_1, 0 AS age_2, 0 AS age_3, 0 AS age_4, 0 AS age_5
    FROM lanes WHERE namespace = ?1
    UNION ALL
    SELECT l.subscription, l.event_type, count(*), 0, 0, 0, min(q.ready_at), NULL, NULL, 0, 0, 0, 0, 0
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at <= ?2
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.subscription, l.event_type, 0, sum(q.retry_count = 0), sum(q.retry_count > 0), 0, NULL, min(q.ready_at), NULL,
           0, 0, 0, 0, 0
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at > ?2 AND q.ready_at < ?3
    GROUP BY l.lane_id
    UNION ALL
    SELECT l.subscription, l.event_type, 0, 0, 0, count(*), NULL, NULL, NULL, 0, 0, 0, 0, 0
    FROM lanes l CROSS JOIN event_queue q INDEXED BY event_queue_lane
    WHERE l.namespace = ?1 AND q.lane_id = l.lane_id AND q.lease IS NULL AND q.ready_at = ?3
    GROUP BY l.lane_id
    UNION ALL
    SELECT q.subscription, q.event_type, 0, 0, 0, 0, NULL, NULL, min(q.picked_at),
           sum(q.picked_at > ?2 - ?4),
           sum(q.picked_at <= ?2 - ?4 AND q.picked_at > ?2 - ?5),
           sum(q.picked_at <= ?2 - ?5 AND q.picked_at > ?2 - ?6),
           sum(q.picked_at <= ?2 - ?6 AND q.picked_at > ?2 - ?7),
           sum(q.picked_at <= ?2 - ?7)
    FROM subscriptions s CROSS JOIN event_queue q INDEXED BY event_queue_leased
    WHERE s.namespace = ?1 AND q.subscription_id = s.subscription_id AND q.lease IS NOT NULL
    GROUP BY q.subscription, q.event_type)
GROUP BY subscription, event_type";

pub(super) fn backlog(conn: &Connection, namespace: &str, now: i64) -> Result<Vec<LiveCount>> {
    let mut select = conn.prepare_cached(BACKLOG)?;
    let [first, second, third, fourth] = PROCESSING_AGES.map(micros);
    let live = select.query_map((namespace, now, INFINITY, first, second, third, fourth), live_count)?;
    Ok(live.collect::<rusqlite::Result<_>>()?)
}

fn live_count(row: &Row) -> rusqlite::Result<LiveCount> {
    let mut processing_ages = [0; 5];
    for (place, age) in processing_ages.iter_mut().enumerate() {
        *age = row::count(row, 9 + place)?;
    }
    Ok(LiveCount {
        subscription: row.get(0)?,
        event_type: row.get(1)?,
        ready: row::count(row, 2)?,
        delayed: row::count(row, 3)?,
        retrying: row::count(row, 4)?,
        waiting_for_group: row::count(row, 5)?,
        processing_ages,
        ready_since: row::instant_if_any(row, 6)?,
        next_at: row::instant_if_any(row, 7)?,
        held_since: row::instant_if_any(row, 8)?,
    })
}
