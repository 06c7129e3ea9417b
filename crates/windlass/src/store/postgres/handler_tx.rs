//! Transactions for handlers, in which the delivery is completed together with the handler's writes.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Executor, Postgres, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::complete::is_plain;
use super::connections::FRESH;
use super::error::from_sqlx;
use super::row::get;
use super::transition::lease_of;
use super::{COLD, PgStore, fix_planner, results, transition};
use crate::clock::{Timestamp, from_micros};
use crate::error::{Error, Result};
use crate::event::delivery::LiveDelivery;
use crate::observe::pools::PoolView;
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::Attempt;
use crate::queue::wake::lock;
use crate::store::{AppliedChanges, DeliveryChange, TxCompletion, TxOutcome};

/// The timeout for a new connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How long closing waits for transactions in use.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Settings for the store's own statements after those of the handler.
const PREPARE: &str = concat!("SET LOCAL statement_timeout = 0; ", fix_planner!("SET LOCAL"));

/// Whether the handler has left the transaction open, and the current time.
const IS_OPEN: &str = "SELECT current_setting('windlass.handler', true) IS NOT DISTINCT FROM 'on', clock_timestamp()";

/// The SQLSTATE of `_complete_in_tx` if the lease is lost.
const LEASE_LOST: &str = "WL409";

/// The pool of these transactions: sqlx's pool, because its transactions own their connection.
pub(super) struct Transactions {
    pool: PgPool,
    permits: Arc<Semaphore>,
    connections: usize,
    begun: Arc<Mutex<Begun>>,
}

/// Transactions that began with the commit of the previous one.
#[derive(Default)]
struct Begun {
    /// Handlers that wait for a transaction.
    waiting: VecDeque<oneshot::Sender<Tx>>,
    /// Transactions that no handler uses yet, oldest first. A task rolls them back after [`BEGUN_MAX`].
    unused: Vec<(Tx, Instant)>,
}

/// How long a begun transaction may wait for a handler. Its `now()` is the time at which it began.
const BEGUN_MAX: Duration = Duration::from_millis(5);

/// A transaction for a handler. Dropping it rolls it back.
pub(crate) struct Tx {
    tx: Transaction<'static, Postgres>,
    timeout_ms: u128,
    _permit: OwnedSemaphorePermit,
}

enum Slot {
    Permit(OwnedSemaphorePermit),
    Begun(Tx),
}

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

impl Transactions {
    pub fn view(&self, pool: &'static str) -> PoolView {
        let idle = self.pool.num_idle();
        PoolView { pool, busy: (self.pool.size() as usize).saturating_sub(idle), idle, max: self.connections }
    }

    /// Connects on first use.
    pub fn new(options: PgConnectOptions, connections: usize) -> Transactions {
        let pool = PgPoolOptions::new()
            .max_connections(connections as u32)
            .acquire_timeout(CONNECT_MAX)
            .test_before_acquire(false)
            .before_acquire(|connection, idle| Box::pin(async move { is_alive(connection, idle.idle_for).await }))
            .after_connect(|connection, _| Box::pin(async move { connection.execute(COLD).await.map(drop) }))
            .connect_lazy_with(options);
        Transactions { pool, permits: Arc::new(Semaphore::new(connections)), connections, begun: Arc::default() }
    }

    /// A transaction that has just begun, or a permit to begin one.
    async fn slot(&self) -> Result<Slot> {
        let passed_on = {
            let mut begun = lock(&self.begun);
            if let Some((tx, _)) = begun.unused.pop() {
                return Ok(Slot::Begun(tx));
            }
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Ok(Slot::Permit(permit));
            }
            let (sender, passed_on) = oneshot::channel();
            begun.waiting.retain(|waiting| !waiting.is_closed());
            begun.waiting.push_back(sender);
            passed_on
        };
        tokio::select! {
            biased;
            Ok(tx) = passed_on => Ok(Slot::Begun(tx)),
            permit = self.permits.clone().acquire_owned() => permit.map(Slot::Permit).map_err(|_| Error::Closed),
        }
    }

    /// Passes a transaction that has just begun to the handler that has waited longest, or keeps it for the next one.
    fn pass_on(&self, mut tx: Tx) {
        let mut begun = lock(&self.begun);
        while let Some(next) = begun.waiting.pop_front() {
            match next.send(tx) {
                Ok(()) => return,
                Err(unused) => tx = unused,
            }
        }
        begun.unused.push((tx, Instant::now()));
        if let [_] = begun.unused[..] {
            tokio::spawn(roll_back_unused(self.begun.clone()));
        }
    }

    pub async fn close(&self) {
        self.permits.close();
        drop(std::mem::take(&mut lock(&self.begun).unused));
        let _ = tokio::time::timeout(CLOSE_MAX, self.pool.close()).await;
    }
}

/// Rolls back transactions that no handler uses, until there are none.
async fn roll_back_unused(begun: Arc<Mutex<Begun>>) {
    loop {
        tokio::time::sleep(BEGUN_MAX).await;
        // Dropped after the lock: sqlx rolls them back.
        let _old: Vec<(Tx, Instant)> = {
            let mut begun = lock(&begun);
            let fresh = begun.unused.partition_point(|(_, since)| since.elapsed() >= BEGUN_MAX);
            begun.unused.drain(..fresh).collect()
        };
        if lock(&begun).unused.is_empty() {
            return;
        }
    }
}

/// Skips the ping for a connection that was used just now: its next statement will fail soon enough.
async fn is_alive(connection: &mut PgConnection, idle_for: Duration) -> sqlx::Result<bool> {
    Ok(idle_for < FRESH || connection.ping().await.is_ok())
}

/// Completes a delivery and commits, in one round trip. `COMMIT AND CHAIN` begins the transaction of the next handler,
/// so the isolation level that this handler may have set is reset.
fn complete_sql(namespace: &str, change: &DeliveryChange, now: Option<Timestamp>, timeout_ms: u128) -> String {
    let LiveDelivery { event_id, subscription_id, .. } = &change.live;
    let lease = lease_of(change).unwrap_or_default();
    let now = now.map_or("NULL".to_owned(), |now| format!("'{}'", now.to_rfc3339()));
    let execution_ms = change.record.execution_time_ms.map_or("NULL".to_owned(), |ms| ms.to_string());
    format!(
        "SELECT * FROM windlass._complete_in_tx('{}', {subscription_id}, {event_id}, {lease}, {now}, {execution_ms}); \
         COMMIT AND CHAIN; SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE, NOT DEFERRABLE; {}",
        namespace.replace('\'', "''"),
        set_up(timeout_ms)
    )
}

/// Settings for a transaction that has begun. The second one tells later whether it is still the same transaction.
fn set_up(timeout_ms: u128) -> String {
    format!("SET LOCAL statement_timeout = {timeout_ms}; SET LOCAL windlass.handler = 'on'")
}

fn completed(row: &PgRow, change: &DeliveryChange) -> Result<Attempt> {
    let count = |column| Ok::<u32, Error>(get::<i32>(row, column)?.unsigned_abs());
    Ok(Attempt {
        event_id: change.live.event_id,
        subscription: change.live.subscription.clone(),
        attempt: count("attempt")?,
        worker_id: get(row, "worker_id")?,
        action: change.action,
        status_code: change.record.status_code,
        execution_time_ms: change.record.execution_time_ms,
        error_message: None,
        next_retry_at: None,
        retry_count: count("retry_count")?,
        max_retries: get::<Option<i32>>(row, "max_retries")?.map(i32::unsigned_abs),
        finished_at: from_micros(get(row, "done_at_us")?),
    })
}

impl PgStore {
    /// Begins a transaction for handlers with this timeout. The server also cancels their statements after it.
    pub async fn begin(&self, timeout: Duration) -> Result<Tx> {
        let timeout_ms = timeout.as_millis().clamp(1, i32::MAX as u128);
        match self.handlers.slot().await? {
            Slot::Permit(permit) => {
                let begin = format!("BEGIN; {}", set_up(timeout_ms));
                let tx = self.handlers.pool.begin_with(AssertSqlSafe(begin)).await.map_err(from_sqlx)?;
                Ok(Tx { tx, timeout_ms, _permit: permit })
            }
            Slot::Begun(mut tx) if tx.timeout_ms != timeout_ms => {
                tx.execute(AssertSqlSafe(set_up(timeout_ms))).await.map_err(from_sqlx)?;
                tx.timeout_ms = timeout_ms;
                Ok(tx)
            }
            Slot::Begun(tx) => Ok(tx),
        }
    }

    /// Records the completion in the transaction and commits it, unless the lease is lost.
    pub async fn close_tx(
        &self,
        tx: Tx,
        namespace: &str,
        closing: &TxCompletion,
        now: Option<Timestamp>,
    ) -> Result<TxOutcome> {
        let closed = match closing {
            TxCompletion::End(closing) => {
                let change = closing.change();
                let attempt = match is_plain(&change) && !change.concerns_results() {
                    true => self.complete(tx, namespace, &change, now).await?,
                    false => end(tx, namespace, &change, now).await?,
                };
                match attempt {
                    Some(attempt) => {
                        let applied = AppliedChanges { attempts: vec![Some(attempt)], ready_lanes: Vec::new() };
                        TxOutcome::Changed(change.into(), applied)
                    }
                    None => TxOutcome::Lost,
                }
            }
            TxCompletion::Note(interim) => note(tx, namespace, interim, now).await?,
        };
        if let TxOutcome::Changed(change, _) = &closed {
            self.note_finished_leases(std::iter::once(&**change));
        }
        Ok(closed)
    }

    /// `None`: the lease is lost.
    async fn complete(
        &self,
        mut tx: Tx,
        namespace: &str,
        change: &DeliveryChange,
        now: Option<Timestamp>,
    ) -> Result<Option<Attempt>> {
        let sql = complete_sql(namespace, change, now, tx.timeout_ms);
        let rows = match sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *tx).await {
            Ok(rows) => rows,
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(LEASE_LOST) => return Ok(None),
            Err(error) => return Err(from_sqlx(error)),
        };
        self.handlers.pass_on(tx);
        rows.first().map(|row| completed(row, change)).transpose()
    }
}

/// Ends a delivery that the short path cannot: its history is not kept, or handlers have results.
async fn end(mut tx: Tx, namespace: &str, change: &DeliveryChange, now: Option<Timestamp>) -> Result<Option<Attempt>> {
    let now = prepare(&mut tx, now).await?;
    let attempt = transition::apply_in_tx(&mut tx, namespace, change, Some(now)).await?;
    if attempt.is_some() {
        tx.tx.commit().await.map_err(from_sqlx)?;
    }
    Ok(attempt)
}

async fn note(mut tx: Tx, namespace: &str, interim: &InterimResult, now: Option<Timestamp>) -> Result<TxOutcome> {
    let now = prepare(&mut tx, now).await?;
    let noted = results::store_interim(&mut tx, namespace, std::slice::from_ref(interim), Some(now)).await?;
    if noted != [true] {
        return Ok(TxOutcome::Lost);
    }
    tx.tx.commit().await.map_err(from_sqlx)?;
    Ok(TxOutcome::Noted)
}

/// Prepares the transaction for the store's own statements. Returns the time to use.
async fn prepare(tx: &mut Tx, now: Option<Timestamp>) -> Result<Timestamp> {
    let (is_open, clock): (bool, Timestamp) = sqlx::query_as(IS_OPEN).fetch_one(&mut **tx).await.map_err(from_sqlx)?;
    if !is_open {
        return Err(Error::Database { detail: "the handler ended its transaction".to_owned() });
    }
    tx.execute(PREPARE).await.map_err(from_sqlx)?;
    Ok(now.unwrap_or(clock))
}
