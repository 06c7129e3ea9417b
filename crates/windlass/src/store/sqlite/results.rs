//! Results of single handlers of a delivery.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::SqliteStore;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;
use crate::queue::handler_results::{Clear, InterimResult};
use crate::queue::outcome::HandlerResult;
use crate::store::{DeliveryChange, ResultStore};

#[async_trait]
impl ResultStore for SqliteStore {
    async fn store_handler_results(
        &self,
        namespace: &str,
        results: &[InterimResult],
        now: Option<Timestamp>,
    ) -> Result<Vec<bool>> {
        let (namespace, results) = (namespace.to_owned(), results.to_vec());
        let store = move |conn: &Connection, now| {
            results.iter().map(|result| store_interim(conn, &namespace, result, now)).collect()
        };
        self.write(now, store).await
    }

    async fn handler_results(&self, namespace: &str, live: &[LiveDelivery]) -> Result<Vec<Vec<HandlerResult>>> {
        let (namespace, live) = (namespace.to_owned(), live.to_vec());
        self.read(move |conn| live.iter().map(|live| of(conn, &namespace, live)).collect()).await
    }
}

/// Stores or deletes the results of a change whose guard held.
pub(super) fn write(conn: &Connection, namespace: &str, change: &DeliveryChange, now: i64) -> Result<()> {
    if !change.concerns_results() {
        return Ok(());
    }
    for result in change.kept_results() {
        put(conn, namespace, &change.live, result, now)?;
    }
    clear(conn, change.live.event_id, change.live.subscription_id, change.clears_results())
}

const HOLDS: &str = "
SELECT 1 FROM event_queue WHERE event_id = ?1 AND subscription_id = ?2 AND namespace = ?3 AND lease = ?4";

/// Stores one result while its attempt is in progress. `false`: the lease is lost, and nothing was stored. A first
/// attempt must name the stored results in its report, or they are not deleted with it.
pub(super) fn store_interim(conn: &Connection, namespace: &str, interim: &InterimResult, now: i64) -> Result<bool> {
    let InterimResult { live, result } = interim;
    let key = (live.event_id, live.subscription_id, namespace, live.lease.map(|lease| lease.0));
    let holds = conn.prepare_cached(HOLDS)?.query_row(key, |_| Ok(())).optional()?.is_some();
    if holds {
        put(conn, namespace, live, result, now)?;
    }
    Ok(holds)
}

const PUT: &str = "
INSERT INTO handler_results (event_id, subscription_id, namespace, subscription, handler, succeeded, error, attempt,
                             created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO UPDATE SET succeeded = excluded.succeeded, error = excluded.error, attempt = excluded.attempt,
    created_at = excluded.created_at";

fn put(conn: &Connection, namespace: &str, live: &LiveDelivery, result: &HandlerResult, now: i64) -> Result<()> {
    conn.prepare_cached(PUT)?.execute((
        live.event_id,
        live.subscription_id,
        namespace,
        &live.subscription,
        &result.handler,
        result.succeeded,
        &result.error,
        live.attempts,
        now,
    ))?;
    Ok(())
}

const CLEAR: &str = "
DELETE FROM handler_results WHERE event_id = ?1 AND subscription_id = ?2 AND (?3 OR NOT succeeded)";

pub(super) fn clear(conn: &Connection, event_id: i64, subscription_id: i64, clear: Clear) -> Result<()> {
    if clear != Clear::Nothing {
        conn.prepare_cached(CLEAR)?.execute((event_id, subscription_id, clear == Clear::All))?;
    }
    Ok(())
}

const OF: &str = "
SELECT handler, succeeded, error FROM handler_results
WHERE event_id = ?1 AND subscription_id = ?2 AND namespace = ?3 ORDER BY handler";

fn of(conn: &Connection, namespace: &str, live: &LiveDelivery) -> Result<Vec<HandlerResult>> {
    let mut select = conn.prepare_cached(OF)?;
    let found = select.query_map((live.event_id, live.subscription_id, namespace), result)?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// From the columns of `OF`.
fn result(row: &Row) -> rusqlite::Result<HandlerResult> {
    Ok(HandlerResult { handler: row.get(0)?, succeeded: row.get(1)?, error: row.get(2)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::delivery::Lease;

    const SCHEMA: &str = concat!(
        include_str!("migrations/0001_schema.sql"),
        "INSERT INTO event_queue (subscription_id, event_id, lane_id, namespace, subscription, event_type, priority, \
         out_of_order, ready_at, attempts_limit, lease, updated_at, created_at) \
         VALUES (1, 10, 1, 'default', 'main', 't', 0, 0, 0, 20, 7, 0, 0);"
    );

    fn held(lease: i64) -> LiveDelivery {
        LiveDelivery {
            event_id: 10,
            subscription_id: 1,
            lane_id: 1,
            event_type: "t".into(),
            lease: Some(Lease(lease)),
            attempts: 1,
            attempts_limit: 20,
            retry_count: 0,
            max_retries: None,
            subscription: "main".into(),
            group_id: None,
            picked_at: None,
        }
    }

    // Q12
    #[test]
    fn result_is_stored_only_with_the_lease() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(SCHEMA).unwrap();
        let result = HandlerResult { handler: "h".into(), succeeded: true, error: None };
        let interim = |lease| InterimResult { live: held(lease), result: result.clone() };
        assert_eq!(store_interim(&conn, "default", &interim(8), 0), Ok(false));
        assert_eq!(store_interim(&conn, "other", &interim(7), 0), Ok(false));
        assert_eq!(of(&conn, "default", &held(7)), Ok(vec![]));
        assert_eq!(store_interim(&conn, "default", &interim(7), 0), Ok(true));
        assert_eq!(store_interim(&conn, "default", &interim(7), 0), Ok(true));
        assert_eq!(of(&conn, "default", &held(7)), Ok(vec![result]));
    }
}
