//! A small connection pool.
//!
//! sqlx's pool is not used: it pings the server each time a connection is returned, which costs as much as a small
//! statement.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection as _, Executor};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::from_sqlx;
use crate::error::{Error, Result};
use crate::observe::pools::PoolView;
use crate::queue::wake::lock;

/// A connection that was idle for this long is pinged before use: the server may have restarted.
pub(super) const FRESH: Duration = Duration::from_secs(1);
/// How long a new connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

pub(super) struct Connections {
    options: PgConnectOptions,
    /// Statements for each new connection.
    setup: &'static str,
    idle: Mutex<Vec<(PgConnection, Instant)>>,
    permits: Semaphore,
    max: usize,
    connects: AtomicU64,
}

/// A pooled connection. [`Connection::done`] returns it to the pool. If it is dropped instead, it is closed, so that an
/// interrupted caller leaves no open transaction behind.
pub(super) struct Connection<'a> {
    connection: Option<PgConnection>,
    pool: &'a Connections,
    _permit: SemaphorePermit<'a>,
}

impl Connections {
    pub fn new(options: PgConnectOptions, setup: &'static str, max: usize) -> Connections {
        Connections {
            options,
            setup,
            idle: Mutex::default(),
            permits: Semaphore::new(max),
            max,
            connects: AtomicU64::new(0),
        }
    }

    pub async fn get(&self) -> Result<Connection<'_>> {
        let permits = self.permits.acquire().await.map_err(|_| Error::Closed)?;
        let connection = Some(self.connection().await?);
        Ok(Connection { connection, pool: self, _permit: permits })
    }

    async fn connection(&self) -> Result<PgConnection> {
        loop {
            let Some((mut connection, since)) = lock(&self.idle).pop() else { break };
            if since.elapsed() < FRESH || connection.ping().await.is_ok() {
                return Ok(connection);
            }
        }
        let connecting = async {
            let mut connection = self.options.connect().await?;
            connection.execute(self.setup).await?;
            Ok(connection)
        };
        self.connects.fetch_add(1, Ordering::SeqCst);
        match tokio::time::timeout(CONNECT_MAX, connecting).await {
            Ok(connected) => connected.map_err(from_sqlx),
            Err(_) => Err(Error::DatabaseUnavailable { detail: format!("no connection within {CONNECT_MAX:?}") }),
        }
    }

    /// How many connections were opened. After a server crash the number has changed before the next statement runs.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::SeqCst)
    }

    pub fn view(&self, pool: &'static str) -> PoolView {
        let busy = self.max - self.permits.available_permits().min(self.max);
        PoolView { pool, busy, idle: lock(&self.idle).len(), max: self.max }
    }

    pub async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *lock(&self.idle));
        for (connection, _) in idle {
            // The server detects the closed socket if this fails.
            let _ = connection.close().await;
        }
    }
}

impl Connection<'_> {
    pub fn done(mut self) {
        if let Some(connection) = self.connection.take() {
            lock(&self.pool.idle).push((connection, Instant::now()));
        }
    }
}

impl Deref for Connection<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("present until done")
    }
}

impl DerefMut for Connection<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("present until done")
    }
}
