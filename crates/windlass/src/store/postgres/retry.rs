//! Retrying after concurrent changes.
//!
//! A statement that finds a row by an old version skips it if another transaction is changing it. For skipped rows,
//! [`lock()`] waits for those transactions, and a second statement sees the current rows. After a deadlock,
//! [`retry_deadlocks`] repeats the transaction.

use sqlx::PgConnection;

use super::error::from_sqlx;
use crate::error::Result;
use crate::event::delivery::LiveDelivery;

pub(super) const LOCK: &str = "
SELECT 1 FROM unnest($2::bigint[], $3::bigint[]) AS i(event_id, subscription_id)
CROSS JOIN LATERAL (
    SELECT 1 FROM windlass.event_queue q
    WHERE q.event_id BETWEEN i.event_id AND i.event_id AND q.subscription_id = i.subscription_id AND q.namespace = $1
    ORDER BY q.event_id FOR UPDATE) AS locked";

/// Locks these deliveries until the transaction ends.
pub(super) async fn lock<'a>(
    connection: &mut PgConnection,
    namespace: &str,
    live: impl Iterator<Item = &'a LiveDelivery>,
) -> Result<()> {
    let mut keys: Vec<(i64, i64)> = live.map(|live| (live.event_id, live.subscription_id)).collect();
    keys.sort_unstable();
    let (events, subscriptions): (Vec<i64>, Vec<i64>) = keys.into_iter().unzip();
    let lock = sqlx::query(LOCK).bind(namespace).bind(events).bind(subscriptions);
    lock.execute(connection).await.map_err(from_sqlx).map(drop)
}

/// The inputs without a result.
pub(super) fn missed<T: Clone, R>(asked: &[T], answers: &[Option<R>]) -> Vec<T> {
    asked.iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(asked, _)| asked.clone()).collect()
}

/// Fills in the results of the second statement.
pub(super) fn fill<R>(answers: &mut [Option<R>], second: Vec<Option<R>>) {
    answers.iter_mut().filter(|answer| answer.is_none()).zip(second).for_each(|(answer, second)| *answer = second);
}

/// Repeats a transaction that the server aborted because of a deadlock. The expression creates a new future for each
/// try.
macro_rules! retry_deadlocks {
    ($call:expr) => {{
        let mut tries = 0;
        loop {
            match $call.await {
                Err($crate::error::Error::DatabaseLocked { .. }) if tries < $crate::store::postgres::DEADLOCKS_MAX => {
                    tries += 1;
                }
                answer => break answer,
            }
        }
    }};
}
pub(super) use retry_deadlocks;
