//! The store on PostgreSQL: set-based statements over arrays, on small connection pools.
//!
//! Each kind of work has its own pool, so that claims and lease renewals never wait behind slow statements. Connections
//! of the hot path have planner settings under which every statement has one plan, whatever the statistics say.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::Serialize;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::AbortHandle;

use self::connections::Connections;
use self::finished_leases::FinishedLease;
pub(crate) use self::handler_tx::Tx;
use self::notify::Ready;
use super::Store;
use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};
use crate::observe::pools::PoolView;
use crate::queue::bad_url;
use crate::queue::wake::{ReadyLane, WakeRegistry, lock};

mod activity;
pub(crate) mod arrive;
mod backfill;
mod cancel;
mod claim;
mod clock_check;
mod complete;
mod connections;
mod dead_letters;
pub(crate) mod diagnose;
mod drop_month;
mod enqueue;
mod error;
mod expire;
mod explain;
mod finished_leases;
mod fire;
mod group;
mod handler_tx;
mod heartbeat;
mod history;
mod inspect;
mod lanes;
mod maintenance_tasks;
mod migrate;
mod months;
mod nodes;
mod notify;
pub(crate) mod pg_cron;
mod pooler;
mod prune;
mod publish;
mod publish_one;
mod reschedule;
mod results;
mod retain;
mod retry;
mod route;
mod row;
mod run;
mod samples;
mod schedules;
mod search;
mod stats;
#[cfg(test)]
mod tests;
mod tokens;
mod topology;
mod transition;
mod watch;

/// Planner settings of the hot path: every statement has one right plan, by index, which must not depend on statistics.
macro_rules! fix_planner {
    ($set:literal) => {
        concat!(
            $set,
            " plan_cache_mode = force_generic_plan; ",
            $set,
            " jit = off; ",
            $set,
            " enable_seqscan = off; ",
            $set,
            " enable_bitmapscan = off; ",
            $set,
            " enable_hashjoin = off; ",
            $set,
            " enable_mergejoin = off; ",
            $set,
            " enable_sort = off; ",
            $set,
            " enable_material = off"
        )
    };
}
use fix_planner;

/// Planner settings for statements that read all rows of a namespace: bitmap scans read each page with such rows once,
/// in order. An index scan would read pages repeatedly, and a sequential scan also those of other namespaces.
macro_rules! read_pages {
    ($set:literal) => {
        concat!(
            $set,
            " jit = off; ",
            $set,
            " max_parallel_workers_per_gather = 0; ",
            $set,
            " enable_seqscan = off; ",
            $set,
            " enable_indexscan = off; ",
            $set,
            " enable_nestloop = off; ",
            $set,
            " enable_sort = off"
        )
    };
}
use read_pages;

/// Statements rely on READ COMMITTED, whatever the server's default is.
macro_rules! read_committed {
    () => {
        "SET default_transaction_isolation = 'read committed'; "
    };
}

const HOT: &str = concat!(read_committed!(), fix_planner!("SET"));

const COLD: &str = concat!(read_committed!(), "SET jit = off");

/// The number of connections of each pool. Batching makes more of them useless.
const CLAIMS: usize = 2;
const WRITES: usize = 6;
const MAINTENANCE: usize = 1;
const ROUTES: usize = 2;
const RENEWALS: usize = 1;
const READS: usize = 4;

/// How often a transaction is repeated after a deadlock.
const DEADLOCKS_MAX: usize = 5;

const NOW: &str = "SELECT coalesce($1, now())";

pub(crate) struct PgStore {
    options: PgConnectOptions,
    clock: Clock,
    claims: Connections,
    writes: Connections,
    maintenance: Connections,
    /// For routers.
    routes: Connections,
    /// For lease renewals, which must not wait for transactions on the other pools.
    renewals: Connections,
    reads: Arc<Connections>,
    /// Transactions for handlers.
    handlers: handler_tx::Transactions,
    /// The time up to which no lease of a subscription was due.
    leases_checked: Mutex<HashMap<i64, Timestamp>>,
    /// To the task that removes leases without deliveries.
    finished_leases: mpsc::UnboundedSender<FinishedLease>,
    /// To the task that notifies other processes.
    ready: mpsc::UnboundedSender<Ready>,
    /// The id of this store in notifications, to ignore its own.
    sender_id: u64,
    /// The number of the last probe that was received.
    last_probe: Arc<channel::Sender<u64>>,
    /// The task that receives the notifications of other processes.
    listening: Mutex<Option<AbortHandle>>,
    /// Partitions for which a failed creation was logged.
    reported_partitions: Mutex<BTreeSet<String>>,
}

impl Drop for PgStore {
    fn drop(&mut self) {
        self.stop_listening();
    }
}

impl PgStore {
    pub async fn open(url: &str, clock: Clock, migrate: bool, handler_connections: usize) -> Result<PgStore> {
        let options = options(url)?;
        let reads = Arc::new(Connections::new(options.clone(), COLD, READS));
        pooler::check(&reads).await?;
        let mut connection = reads.get().await?;
        migrate::migrate(&mut connection, migrate).await?;
        months::add_ahead(&mut connection).await?;
        migrate::add_default_namespace(&mut connection, clock.overridden()).await?;
        connection.done();
        let (ready, inbox) = mpsc::unbounded_channel();
        let sender_id = fastrand::u64(notify::APPLICATION + 1..);
        tokio::spawn(notify::send(inbox, reads.clone(), sender_id));
        let (finished_leases, finished) = mpsc::unbounded_channel();
        tokio::spawn(finished_leases::remove_finished(finished, reads.clone()));
        Ok(PgStore {
            leases_checked: Mutex::default(),
            clock,
            finished_leases,
            claims: Connections::new(options.clone(), HOT, CLAIMS),
            writes: Connections::new(options.clone(), HOT, WRITES),
            maintenance: Connections::new(options.clone(), HOT, MAINTENANCE),
            routes: Connections::new(options.clone(), HOT, ROUTES),
            renewals: Connections::new(options.clone(), HOT, RENEWALS),
            handlers: handler_tx::Transactions::new(options.clone(), handler_connections),
            reads,
            options,
            ready,
            sender_id,
            last_probe: Arc::default(),
            listening: Mutex::default(),
            reported_partitions: Mutex::default(),
        })
    }

    fn stop_listening(&self) {
        if let Some(listening) = lock(&self.listening).take() {
            listening.abort();
        }
    }

    /// Whether a failure for this partition was not logged before.
    fn should_log_failure(&self, partition: &str) -> bool {
        lock(&self.reported_partitions).insert(partition.to_owned())
    }

    /// Notifies other processes that deliveries are ready in these lanes, or will be.
    fn notify(&self, namespace: &str, lanes: Vec<ReadyLane>) {
        if !lanes.is_empty() {
            self.send_ready(Ready { namespace: namespace.to_owned(), lanes });
        }
    }

    /// Notifies other processes that deliveries are ready in some lanes of the namespace.
    fn notify_anywhere(&self, namespace: &str) {
        self.send_ready(Ready { namespace: namespace.to_owned(), lanes: Vec::new() });
    }

    fn send_ready(&self, ready: Ready) {
        // Fails only while the store is being dropped.
        let _ = self.ready.send(ready);
    }
}

fn options(url: &str) -> Result<PgConnectOptions> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| bad_url(url, &error.to_string()))?;
    // Statements are traced by their callers.
    Ok(options.application_name("windlass").disable_statement_logging())
}

/// The database's schema version, and the newest that this build knows.
pub(crate) async fn schema_version(url: &str) -> Result<(i64, i64)> {
    let mut connection = options(url)?.connect().await.map_err(error::from_sqlx)?;
    Ok((migrate::found(&mut connection).await?, migrate::KNOWN))
}

fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Database { detail: error.to_string() })
}

#[async_trait]
impl Store for PgStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn batches_in_flight(&self) -> usize {
        4
    }

    fn postgres(&self) -> Option<&PgStore> {
        Some(self)
    }

    async fn watch(&self, wakes: Arc<WakeRegistry>) {
        let listen = notify::listen(self.options.clone(), wakes, self.sender_id, self.last_probe.clone());
        *lock(&self.listening) = Some(tokio::spawn(listen).abort_handle());
    }

    async fn now(&self, now: Option<Timestamp>) -> Result<Timestamp> {
        let mut connection = self.maintenance.get().await?;
        let now = sqlx::query_scalar(NOW).bind(now);
        let now = now.fetch_one(&mut *connection).await.map_err(error::from_sqlx)?;
        connection.done();
        Ok(now)
    }

    fn pools(&self) -> Vec<PoolView> {
        vec![
            self.claims.view("claims"),
            self.writes.view("writes"),
            self.maintenance.view("maintenance"),
            self.routes.view("routes"),
            self.renewals.view("renewals"),
            self.reads.view("reads"),
            self.handlers.view("handlers"),
        ]
    }

    async fn close(&self) {
        self.stop_listening();
        for connections in [&self.claims, &self.writes, &self.maintenance, &self.routes, &self.renewals, &self.reads] {
            connections.close().await;
        }
        self.handlers.close().await;
    }
}
