//! Recording and deleting attempts.

use rusqlite::{Connection, Statement};
use serde_json::value::RawValue;

use crate::clock::from_micros;
use crate::error::Result;
use crate::queue::outcome::{Action, Attempt};

/// An ended attempt.
pub(super) struct EndedAttempt<'a> {
    pub event_id: i64,
    pub subscription_id: i64,
    pub subscription: &'a str,
    pub event_type: &'a str,
    pub attempt: u32,
    pub lease: Option<i64>,
    pub worker_id: Option<&'a str>,
    pub picked_at: Option<i64>,
    pub started_at: Option<i64>,
    pub finished_at: i64,
    pub action: Action,
    pub status_code: Option<i32>,
    pub execution_time_ms: Option<u64>,
    pub error: Option<&'a str>,
    pub detail: Option<&'a RawValue>,
    pub next_retry_at: Option<i64>,
    pub retry_count: u32,
    pub max_retries: Option<u32>,
}

impl EndedAttempt<'_> {
    pub fn into_attempt(self) -> Attempt {
        Attempt {
            event_id: self.event_id,
            subscription: self.subscription.to_owned(),
            attempt: self.attempt,
            worker_id: self.worker_id.map(str::to_owned),
            action: self.action,
            status_code: self.status_code,
            execution_time_ms: self.execution_time_ms,
            error_message: self.error.map(str::to_owned),
            next_retry_at: self.next_retry_at.map(from_micros),
            retry_count: self.retry_count,
            max_retries: self.max_retries,
            finished_at: from_micros(self.finished_at),
        }
    }
}

pub(super) const INSERT: &str = "
INSERT INTO event_attempts (event_id, subscription_id, attempt, namespace, subscription, event_type, lease, worker_id,
                            picked_at, started_at, finished_at, action, status_code, execution_time_ms, error_message,
                            detail, next_retry_at, retry_count, max_retries)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";

pub(super) fn insert(insert: &mut Statement<'_>, namespace: &str, ended: &EndedAttempt) -> Result<()> {
    insert.execute(rusqlite::params![
        ended.event_id,
        ended.subscription_id,
        ended.attempt,
        namespace,
        ended.subscription,
        ended.event_type,
        ended.lease,
        ended.worker_id,
        ended.picked_at,
        ended.started_at,
        ended.finished_at,
        ended.action.as_str(),
        ended.status_code,
        // The limit was checked when it was reported.
        ended.execution_time_ms.map(|ms| ms as i64),
        ended.error,
        ended.detail.map(RawValue::get),
        ended.next_retry_at,
        ended.retry_count,
        ended.max_retries,
    ])?;
    Ok(())
}

const FORGET_DELIVERY: &str = "DELETE FROM event_attempts WHERE event_id = ?1 AND subscription = ?2";

const FORGET_EVENT: &str = "
DELETE FROM events WHERE id = ?1 AND namespace = ?2
  AND NOT EXISTS (SELECT 1 FROM subscriptions s
                  CROSS JOIN event_queue q ON q.subscription_id = s.subscription_id AND q.event_id = ?1
                  WHERE s.namespace = ?2)
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE event_id = ?1)
  AND NOT EXISTS (SELECT 1 FROM event_attempts WHERE event_id = ?1)";

/// Deletes the history of a delivery and, unless another delivery is in the queue, a dead letter or kept, the event.
/// Returns the number of deleted events.
pub(super) fn forget(conn: &Connection, namespace: &str, event_id: i64, subscription: &str) -> Result<usize> {
    conn.prepare_cached(FORGET_DELIVERY)?.execute((event_id, subscription))?;
    Ok(conn.prepare_cached(FORGET_EVENT)?.execute((event_id, namespace))?)
}
