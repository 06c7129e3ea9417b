//! Asking once more.
//!
//! A statement finds a row by its old version if somebody else is changing it at that moment, and then
//! passes it over. What was passed over is locked, and then asked for in a statement that sees it as it is.

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

/// Waits until nobody else changes these deliveries, and lets nobody until the transaction ends.
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

/// What got no answer.
pub(super) fn missed<T: Clone, R>(asked: &[T], answers: &[Option<R>]) -> Vec<T> {
    asked.iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(asked, _)| asked.clone()).collect()
}

/// Puts second answers where there was none.
pub(super) fn fill<R>(answers: &mut [Option<R>], second: Vec<Option<R>>) {
    answers.iter_mut().filter(|answer| answer.is_none()).zip(second).for_each(|(answer, second)| *answer = second);
}

/// Repeats a transaction that the server broke off to resolve a deadlock.
macro_rules! despite_deadlocks {
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
pub(super) use despite_deadlocks;
