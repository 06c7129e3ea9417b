//! Transactions that handlers work in.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor, Postgres, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connections::FRESH;
use super::error::from_sqlx;
use super::{COLD, PgStore, fix_planner, results, transition};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::pool::PoolView;
use crate::store::{Applied, Closed, Closing};

/// Handlers beyond this many wait for each other.
const HANDLERS: usize = 16;
/// How long a new connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Closing waits so long for what is still lent.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Fails where the handler has ended the transaction. Then the planner is fixed until its end: for our own statements,
/// after the handler's.
const HOT_HERE: &str =
    concat!("RELEASE SAVEPOINT windlass; SET LOCAL statement_timeout = 0; ", fix_planner!("SET LOCAL"));

/// Where they come from: sqlx's pool, since its transactions are the only ones that can be lent.
pub(super) struct Transactions {
    pool: PgPool,
    room: Arc<Semaphore>,
}

/// A transaction that can be lent. Dropped, it is rolled back.
pub(crate) struct Tx {
    tx: Transaction<'static, Postgres>,
    _room: OwnedSemaphorePermit,
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
        PoolView { pool, busy: (self.pool.size() as usize).saturating_sub(idle), idle, max: HANDLERS }
    }

    /// Connects when the first is asked for.
    pub fn new(options: PgConnectOptions) -> Transactions {
        let pool = PgPoolOptions::new()
            .max_connections(HANDLERS as u32)
            .acquire_timeout(CONNECT_MAX)
            .test_before_acquire(false)
            .before_acquire(|connection, idle| Box::pin(async move { is_alive(connection, idle.idle_for).await }))
            .after_connect(|connection, _| Box::pin(async move { connection.execute(COLD).await.map(drop) }))
            .connect_lazy_with(options);
        Transactions { pool, room: Arc::new(Semaphore::new(HANDLERS)) }
    }

    pub async fn close(&self) {
        self.room.close();
        let _ = tokio::time::timeout(CLOSE_MAX, self.pool.close()).await;
    }
}

/// One that was used just now is not tried first: what is wrong with it shows soon enough.
async fn is_alive(connection: &mut PgConnection, idle_for: Duration) -> sqlx::Result<bool> {
    Ok(idle_for < FRESH || connection.ping().await.is_ok())
}

impl PgStore {
    /// Begins a transaction for handlers that may take so long: what one asked for ends with it, also on the server.
    pub async fn begin(&self, timeout: Duration) -> Result<Tx> {
        let room = self.handlers.room.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        let timeout_ms = timeout.as_millis().clamp(1, i32::MAX as u128);
        let begin = format!("BEGIN; SET LOCAL statement_timeout = {timeout_ms}; SAVEPOINT windlass");
        let tx = self.handlers.pool.begin_with(AssertSqlSafe(begin)).await.map_err(from_sqlx)?;
        Ok(Tx { tx, _room: room })
    }

    /// Adds to the transaction what belongs to it, and commits it, unless the lease was lost.
    pub async fn close_tx(
        &self,
        mut tx: Tx,
        namespace: &str,
        closing: &Closing,
        now: Option<Timestamp>,
    ) -> Result<Closed> {
        tx.execute(HOT_HERE).await.map_err(from_sqlx)?;
        let closed = close(&mut tx, namespace, closing, now).await?;
        if matches!(closed, Closed::Lost) {
            return Ok(closed);
        }
        tx.tx.commit().await.map_err(from_sqlx)?;
        if let Closed::Changed(change, applied) = &closed {
            self.notify(namespace, applied.freed.clone());
            self.note_finished_leases(std::iter::once(&**change));
        }
        Ok(closed)
    }
}

async fn close(
    connection: &mut PgConnection,
    namespace: &str,
    closing: &Closing,
    now: Option<Timestamp>,
) -> Result<Closed> {
    match closing {
        Closing::Note(interim) => {
            let noted = results::note(connection, namespace, std::slice::from_ref(interim), now).await?;
            Ok(if noted == [true] { Closed::Noted } else { Closed::Lost })
        }
        Closing::End(closing) => {
            let change = closing.change();
            let changes = std::slice::from_ref(&change);
            let (attempts, freed) = transition::apply(connection, namespace, changes, true, now).await?;
            Ok(match attempts[0] {
                Some(_) => Closed::Changed(change.into(), Applied { attempts, freed }),
                None => Closed::Lost,
            })
        }
    }
}
