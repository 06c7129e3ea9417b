//! Transactions for handlers, in which the delivery is completed together with the handler's writes.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use rusqlite::Connection;

use super::{SqliteStore, results, transition};
use crate::clock::{Timestamp, micros};
use crate::error::{Error, Result};
use crate::queue::wake::lock;
use crate::store::{TxCompletion, TxOutcome};

impl SqliteStore {
    /// Runs `work` in a transaction, records the completion in it and commits it, unless `work` fails or the lease is
    /// lost.
    pub async fn handle<F>(
        &self,
        namespace: &str,
        closing: TxCompletion,
        now: Option<Timestamp>,
        work: F,
    ) -> Result<TxOutcome>
    where
        F: Fn(&Connection) -> Result<()> + Send + 'static,
    {
        let (lost, is_set) = (Arc::new(Mutex::new(false)), now.is_some());
        let (namespace, told) = (namespace.to_owned(), lost.clone());
        let closed = self
            .write_repeatable(now, move |conn, now| {
                *lock(&told) = false;
                let begun = Instant::now();
                work(conn)?;
                // Add the handler's execution time, unless a test sets the clock.
                let now = if is_set { now } else { now.saturating_add(micros(begun.elapsed())) };
                if conn.is_autocommit() {
                    return Err(Error::Database { detail: "the handler ended its transaction".to_owned() });
                }
                let closed = close(conn, &namespace, &closing, now)?;
                // An error rolls the write back.
                closed.ok_or_else(|| {
                    *lock(&told) = true;
                    Error::Database { detail: "the lease was lost".to_owned() }
                })
            })
            .await;
        if *lock(&lost) { Ok(TxOutcome::Lost) } else { closed }
    }
}

/// `None` if the lease is not the current one.
fn close(conn: &Connection, namespace: &str, closing: &TxCompletion, now: i64) -> Result<Option<TxOutcome>> {
    match closing {
        TxCompletion::Note(interim) => {
            Ok(results::store_interim(conn, namespace, interim, now)?.then_some(TxOutcome::Noted))
        }
        TxCompletion::End(closing) => {
            let change = closing.change();
            let applied = transition::transition(conn, namespace, std::slice::from_ref(&change), now)?;
            Ok(applied.attempts[0].is_some().then(|| TxOutcome::Changed(change.into(), applied)))
        }
    }
}
