//! The store in an SQLite file: one thread writes, a few connections read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use serde_json::value::RawValue;

use super::{
    ActivitySince, AddedSubscription, AppliedChanges, DeliveryChange, EventHead, HeldDelivery, NewDelivery,
    NewSubscription, PastEvents, PendingPosition, PreparedEvent, PreparedNode, PreparedToken, PublishOutcome,
    RecentActivity, RouteRequest, Store,
};
use crate::admin::tokens::Token;
use crate::clock::{Clock, Timestamp, from_micros, micros};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::event::delivery::LiveDelivery;
use crate::maintenance::task::{MaintenanceRun, MaintenanceTask, MaintenanceTaskView};
use crate::node::registry::NodeView;
use crate::observe::backlog::LiveCount;
use crate::observe::inspect::{
    DeadLetter, DeadLetterFilter, DeadLetterGroup, EventView, ListFilter, LogEntry, Page, StatRow, StuckDelivery,
    WorkerView,
};
use crate::observe::overview::{Counts, Reasons};
use crate::observe::pools::PoolView;
use crate::observe::samples::thin::Level;
use crate::observe::samples::{Points, SampleRow};
use crate::policy::NamespacePolicy;
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::{Attempt, HandlerResult};
use crate::queue::wake::WakeRegistry;
use crate::topology::lanes::{EMPTY_LANES_MIN, Lane, LaneKey};
use crate::topology::{Namespace, Subscription, Topology};

mod activity;
pub(crate) mod arrive;
mod backlog;
mod cancel;
mod claim;
mod commit_watch;
mod connection;
mod dead_letters;
pub(crate) mod diagnose;
mod enqueue;
mod error;
mod explain;
mod fire;
mod group;
mod handle;
mod history;
mod inspect;
mod instants;
mod keeping;
mod lanes;
mod lease;
mod list;
mod look;
mod maintain;
mod maintenance_tasks;
mod migrate;
mod overview;
mod prune;
mod publish;
mod record;
mod register;
mod reschedule;
mod results;
mod retain;
mod route;
mod row;
mod run;
mod samples;
mod schedule;
mod schedules;
mod search;
mod seen;
mod stats;
mod token;
mod topology;
mod transition;
mod wal_watch;
mod writer;

use connection::Readers;
use instants::Instants;
use writer::{Durability, Writer};

pub(crate) struct SqliteStore {
    file: PathBuf,
    writer: Writer,
    readers: Arc<Readers>,
    instants: Arc<Instants>,
}

/// The schema version of the database in this file, which is left as it is, and the one this build needs.
pub(crate) async fn schema_version(path: &str) -> Result<(i64, i64)> {
    let path = file(path)?;
    let found = blocking(move || migrate::version_of(&path)).await?;
    Ok((found, migrate::KNOWN))
}

fn file(path: &str) -> Result<PathBuf> {
    match path {
        "" => Err(Error::DatabaseUrl { url: "sqlite://".to_owned(), problem: "must name a file".to_owned() }),
        ":memory:" => Ok(connection::in_memory()),
        path => Ok(PathBuf::from(path)),
    }
}

/// Runs `work` where it may block.
async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    let failed = |error| Error::Database { detail: format!("a read did not finish: {error}") };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn open_and_migrate(path: &Path, instants: &Instants, migrate: bool) -> Result<Connection> {
    if !migrate && !path.exists() {
        return Err(Error::SchemaTooOld { found: 0, known: migrate::KNOWN });
    }
    let mut conn = connection::open_writer(path, migrate)?;
    migrate::prepare(&mut conn, migrate, instants.now())?;
    Ok(conn)
}

impl SqliteStore {
    /// Opens the file, or creates it. Brings the schema up to date if `migrate` says so.
    pub async fn open(path: &str, clock: Clock, migrate: bool) -> Result<SqliteStore> {
        let path = file(path)?;
        let instants = Arc::new(Instants::new(clock));
        let conn = {
            let (path, instants) = (path.clone(), instants.clone());
            blocking(move || open_and_migrate(&path, &instants, migrate)).await?
        };
        let readers = Arc::new(Readers::new(path.clone()));
        let (stale, file) = (readers.clone(), path.clone());
        let reopen = move || {
            stale.clear();
            connection::open_writer(&path, false)
        };
        let settings = commit_watch::Settings::of(&file);
        let writer = Writer::start(conn, instants.clone(), settings, reopen)?;
        Ok(SqliteStore { file, writer, readers, instants })
    }

    /// Runs `work` in a transaction, and returns once that is committed and synced.
    async fn write<T, F>(&self, now: Option<Timestamp>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, i64) -> Result<T> + Send + 'static,
    {
        self.writer.write(Durability::Full, row::micros(now), work).await
    }

    /// The same for what somebody else wrote, who may break the transaction: it shares one only with its like, and is
    /// run again alone where that fails.
    async fn write_repeatable<T, F>(&self, now: Option<Timestamp>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection, i64) -> Result<T> + Send + 'static,
    {
        self.writer.write_repeatable(row::micros(now), work).await
    }

    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let readers = self.readers.clone();
        blocking(move || readers.read(work)).await
    }

    fn now(&self, now: Option<Timestamp>) -> i64 {
        row::micros(now).unwrap_or_else(|| self.instants.now())
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    /// While one is being synced the next waits at the writer's door, which then never idles.
    fn batches_in_flight(&self) -> usize {
        2
    }

    fn sqlite(&self) -> Option<&SqliteStore> {
        Some(self)
    }

    async fn watch(&self, wakes: Arc<WakeRegistry>) {
        self.writer.watch(wakes);
    }

    async fn now(&self, now: Option<Timestamp>) -> Result<Timestamp> {
        Ok(from_micros(SqliteStore::now(self, now)))
    }

    async fn close(&self) {
        self.readers.close();
        self.writer.close().await;
    }

    async fn topology(&self, namespace: &str) -> Result<Option<Topology>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| topology::topology(conn, &namespace)).await
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.read(topology::namespaces).await
    }

    async fn put_namespace(
        &self,
        namespace: &str,
        metadata: Option<&RawValue>,
        policy: Option<&NamespacePolicy>,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, metadata, policy) = (namespace.to_owned(), metadata.map(ToOwned::to_owned), policy.cloned());
        self.write(now, move |conn, now| {
            let metadata = metadata.as_deref().map(RawValue::get);
            topology::put_namespace(conn, &namespace, metadata, policy.as_ref(), now)
        })
        .await
    }

    async fn pause_namespace(&self, namespace: &str, paused: bool) -> Result<()> {
        let namespace = namespace.to_owned();
        self.write(None, move |conn, _| topology::pause_namespace(conn, &namespace, paused)).await
    }

    async fn pause_type(&self, namespace: &str, pattern: &str, paused: bool) -> Result<()> {
        let (namespace, pattern) = (namespace.to_owned(), pattern.to_owned());
        self.write(None, move |conn, _| topology::pause_type(conn, &namespace, &pattern, paused)).await
    }

    async fn add_subscription(
        &self,
        route: &RouteRequest,
        new: &NewSubscription,
        now: Option<Timestamp>,
    ) -> Result<AddedSubscription> {
        let (route, new) = (route.clone(), new.clone());
        self.write(now, move |conn, now| topology::add_subscription(conn, &route, &new, now)).await
    }

    async fn pause_subscription(&self, namespace: &str, subscription: &str, paused: bool) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), subscription.to_owned());
        self.write(None, move |conn, _| topology::pause_subscription(conn, &namespace, &name, paused)).await
    }

    async fn remove_subscription(&self, namespace: &str, subscription: &str) -> Result<bool> {
        let (namespace, name) = (namespace.to_owned(), subscription.to_owned());
        self.write(None, move |conn, _| topology::remove_subscription(conn, &namespace, &name)).await
    }

    async fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>> {
        let (namespace, lanes) = (namespace.to_owned(), lanes.to_vec());
        self.write(None, move |conn, now| lanes::add_lanes(conn, &namespace, &lanes, now)).await
    }

    async fn lanes_after(&self, namespace: &str, lane_id: i64) -> Result<Vec<Lane>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| lanes::lanes_after(conn, &namespace, lane_id)).await
    }

    /// Finds the lanes outside the write transaction, which checks them once more.
    async fn remove_empty_lanes(
        &self,
        namespace: &str,
        min_age: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let (reading, created_until) = (namespace.to_owned(), self.now(now).saturating_sub(micros(min_age)));
        let empty = self.read(move |conn| lanes::empty_lanes(conn, &reading, created_until, limit)).await?;
        if empty.len() < EMPTY_LANES_MIN {
            return Ok(0);
        }
        let namespace = namespace.to_owned();
        self.write(now, move |conn, _| lanes::remove_lanes(conn, &namespace, &empty)).await
    }

    async fn past_events(&self, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents> {
        let (namespace, of) = (namespace.to_owned(), of.clone());
        self.read(move |conn| enqueue::past_events(conn, &namespace, &of, from, limit)).await
    }

    async fn backfill(
        &self,
        namespace: &str,
        subscription: &str,
        deliveries: &[(Event, NewDelivery)],
        from: i64,
        next: Option<i64>,
        now: Option<Timestamp>,
    ) -> Result<bool> {
        let (namespace, name, deliveries) = (namespace.to_owned(), subscription.to_owned(), deliveries.to_vec());
        self.write(now, move |conn, now| enqueue::backfill(conn, &namespace, &name, &deliveries, from, next, now)).await
    }

    async fn add_token(&self, token: &PreparedToken, now: Option<Timestamp>) -> Result<Token> {
        let token = token.clone();
        self.write(now, move |conn, now| token::add(conn, token, now)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read(token::all).await
    }

    async fn remove_token(&self, token_id: &str) -> Result<bool> {
        let token_id = token_id.to_owned();
        self.write(None, move |conn, _| token::remove(conn, &token_id)).await
    }

    async fn register_node(
        &self,
        namespace: &str,
        node: &PreparedNode,
        max: usize,
        now: Option<Timestamp>,
    ) -> Result<Option<NodeView>> {
        let (namespace, node) = (namespace.to_owned(), node.clone());
        self.write(now, move |conn, now| register::register(conn, &namespace, &node, max, now)).await
    }

    async fn touch_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        let (namespace, node_id) = (namespace.to_owned(), node_id.to_owned());
        self.write(now, move |conn, now| register::touch(conn, &namespace, &node_id, now)).await
    }

    async fn stop_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        let (namespace, node_id) = (namespace.to_owned(), node_id.to_owned());
        self.write(now, move |conn, now| register::stop(conn, &namespace, &node_id, now)).await
    }

    async fn nodes(&self, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>> {
        let (namespace, node_id) = (namespace.to_owned(), node_id.map(str::to_owned));
        self.read(move |conn| register::nodes(conn, &namespace, node_id.as_deref())).await
    }

    async fn publish(
        &self,
        namespace: &str,
        version: i64,
        events: &[&PreparedEvent],
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<PublishOutcome>>> {
        let (namespace, events) = (namespace.to_owned(), events.iter().copied().cloned().collect::<Vec<_>>());
        self.write(now, move |conn, now| publish::publish(conn, &namespace, version, &events, now)).await
    }

    async fn expired(&self, namespace: &str, limit: usize, now: Option<Timestamp>) -> Result<Vec<LiveDelivery>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| maintain::expired(conn, &namespace, limit, now)).await
    }

    async fn free(
        &self,
        _namespace: &str,
        lanes: &[i64],
        after: Option<PendingPosition>,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<(LiveDelivery, PendingPosition)>> {
        let lanes = lanes.to_vec();
        self.read(move |conn| cancel::free(conn, &lanes, after, newest, limit)).await
    }

    async fn held(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<LiveDelivery>>> {
        let (namespace, holders) = (namespace.to_owned(), holders.to_vec());
        self.read(move |conn| holders.iter().map(|holder| lease::held(conn, &namespace, holder)).collect()).await
    }

    async fn transition(
        &self,
        namespace: &str,
        changes: &[DeliveryChange],
        now: Option<Timestamp>,
    ) -> Result<AppliedChanges> {
        let (namespace, changes) = (namespace.to_owned(), changes.to_vec());
        self.write(now, move |conn, now| transition::transition(conn, &namespace, &changes, now)).await
    }

    async fn store_handler_results(
        &self,
        namespace: &str,
        results: &[InterimResult],
        now: Option<Timestamp>,
    ) -> Result<Vec<bool>> {
        let (namespace, results) = (namespace.to_owned(), results.to_vec());
        let store = move |conn: &Connection, now| {
            results.iter().map(|result| results::note(conn, &namespace, result, now)).collect()
        };
        self.write(now, store).await
    }

    async fn handler_results(&self, namespace: &str, live: &[LiveDelivery]) -> Result<Vec<Vec<HandlerResult>>> {
        let (namespace, live) = (namespace.to_owned(), live.to_vec());
        self.read(move |conn| live.iter().map(|live| results::of(conn, &namespace, live)).collect()).await
    }

    async fn recorded(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<Attempt>>> {
        let (namespace, holders) = (namespace.to_owned(), holders.to_vec());
        self.read(move |conn| holders.iter().map(|holder| record::recorded(conn, &namespace, holder)).collect()).await
    }

    async fn start(
        &self,
        namespace: &str,
        live: &[LiveDelivery],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        let (namespace, live) = (namespace.to_owned(), live.to_vec());
        self.write(now, move |conn, now| live.iter().map(|live| lease::start(conn, &namespace, live, now)).collect())
            .await
    }

    async fn extend(
        &self,
        namespace: &str,
        live: &[(LiveDelivery, Duration)],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        let (namespace, live) = (namespace.to_owned(), live.to_vec());
        self.write(now, move |conn, now| {
            live.iter().map(|(live, by)| lease::extend(conn, &namespace, live, *by, now)).collect()
        })
        .await
    }

    async fn dead_letter_groups(&self, namespace: &str, rows: usize, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| dead_letters::groups(conn, &namespace, rows, limit)).await
    }

    async fn dead_letters(&self, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| dead_letters::list(conn, &namespace, &filter)).await
    }

    async fn redrive(
        &self,
        namespace: &str,
        letters: &[(DeadLetter, NewDelivery)],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let (namespace, letters) = (namespace.to_owned(), letters.to_vec());
        self.write(now, move |conn, now| dead_letters::redrive(conn, &namespace, &letters, now)).await
    }

    async fn purge(&self, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.write(None, move |conn, _| dead_letters::purge(conn, &namespace, &filter, limit)).await
    }

    async fn due_maintenance_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
        now: Option<Timestamp>,
    ) -> Result<Vec<(String, MaintenanceTask)>> {
        let (namespace, tasks, now) = (namespace.map(str::to_owned), tasks.to_vec(), self.now(now));
        self.read(move |conn| maintenance_tasks::due(conn, namespace.as_deref(), &tasks, now)).await
    }

    async fn acquire_maintenance_tasks(
        &self,
        namespace: &str,
        tasks: &[MaintenanceTask],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<MaintenanceTask>> {
        let (namespace, tasks, worker_id) = (namespace.to_owned(), tasks.to_vec(), worker_id.to_owned());
        // One that is lost in a power cut is only done again.
        let work = move |conn: &Connection, now| maintenance_tasks::take(conn, &namespace, &tasks, &worker_id, now);
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn extend_maintenance_task(
        &self,
        namespace: &str,
        task: MaintenanceTask,
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, worker_id) = (namespace.to_owned(), worker_id.to_owned());
        let work = move |conn: &Connection, now| maintenance_tasks::hold(conn, &namespace, task, &worker_id, now);
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn record_maintenance_runs(
        &self,
        namespace: &str,
        runs: &[MaintenanceRun],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        let (namespace, runs, worker_id) = (namespace.to_owned(), runs.to_vec(), worker_id.to_owned());
        let work = move |conn: &Connection, now| maintenance_tasks::note(conn, &namespace, &runs, &worker_id, now);
        self.writer.write(Durability::Relaxed, row::micros(now), work).await
    }

    async fn maintenance_tasks(&self, namespace: &str) -> Result<Vec<MaintenanceTaskView>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| maintenance_tasks::maintenance_tasks(conn, &namespace)).await
    }

    async fn prune(&self, namespace: &str, node_kept: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        let namespace = namespace.to_owned();
        self.write(now, move |conn, now| prune::prune(conn, &namespace, node_kept, limit, now)).await
    }

    async fn prune_fires(
        &self,
        namespace: &str,
        kept: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        let namespace = namespace.to_owned();
        self.write(now, move |conn, now| prune::fires(conn, &namespace, kept, limit, now)).await
    }

    async fn add_samples(&self, namespace: &str, rows: &[SampleRow]) -> Result<()> {
        let (namespace, rows) = (namespace.to_owned(), rows.to_vec());
        let work = move |conn: &Connection, _| samples::add(conn, &namespace, &rows);
        // Samples that are lost in a power cut are not worth a sync.
        self.writer.write(Durability::Relaxed, None, work).await
    }

    /// Whoever publishes in a transaction adds to the samples themselves: nobody else can write meanwhile anyway.
    async fn sampled_lately(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<String>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| samples::sampled_lately(conn, &namespace, now)).await
    }

    async fn thin_samples(&self, namespace: &str, level: &Level, before: Timestamp, limit: usize) -> Result<usize> {
        let (namespace, level, before) = (namespace.to_owned(), *level, before.timestamp_micros());
        self.write(None, move |conn, _| samples::thin(conn, &namespace, &level, before, limit)).await
    }

    async fn samples(&self, namespace: &str, points: Points) -> Result<Points> {
        let namespace = namespace.to_owned();
        self.read(move |conn| samples::samples(conn, &namespace, points)).await
    }

    async fn exists(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<bool>> {
        let (namespace, ids) = (namespace.to_owned(), event_ids.to_vec());
        self.read(move |conn| ids.iter().map(|event_id| inspect::exists(conn, &namespace, *event_id)).collect()).await
    }

    async fn get(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<Option<EventView>>> {
        let (namespace, ids) = (namespace.to_owned(), event_ids.to_vec());
        self.read(move |conn| ids.iter().map(|event_id| inspect::view(conn, &namespace, *event_id)).collect()).await
    }

    async fn log(&self, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
        let namespace = namespace.to_owned();
        self.read(move |conn| inspect::log(conn, &namespace, event_id)).await
    }

    async fn list(&self, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
        let (namespace, filter) = (namespace.to_owned(), filter.clone());
        self.read(move |conn| list::list(conn, &namespace, &filter)).await
    }

    async fn recent(&self, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity> {
        let (namespace, since) = (namespace.to_owned(), *since);
        self.read(move |conn| activity::recent(conn, &namespace, &since, limit)).await
    }

    async fn heads(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>> {
        let (namespace, ids) = (namespace.to_owned(), event_ids.to_vec());
        self.read(move |conn| activity::heads(conn, &namespace, &ids)).await
    }

    async fn stuck(
        &self,
        namespace: &str,
        older_than: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<StuckDelivery>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| stats::stuck(conn, &namespace, older_than, limit, now)).await
    }

    async fn workers(&self, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>> {
        let (namespace, since) = (namespace.to_owned(), since.timestamp_micros());
        self.read(move |conn| stats::workers(conn, &namespace, since)).await
    }

    async fn backlog(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
        let (namespace, now) = (namespace.to_owned(), self.now(now));
        self.read(move |conn| backlog::backlog(conn, &namespace, now)).await
    }

    async fn counts(&self, namespace: &str, reasons: &Reasons, now: Option<Timestamp>) -> Result<Counts> {
        let (namespace, reasons, now) = (namespace.to_owned(), *reasons, self.now(now));
        self.read(move |conn| overview::counts(conn, &namespace, &reasons, now)).await
    }

    /// One connection writes, and readers open one when they need it.
    fn pools(&self) -> Vec<PoolView> {
        Vec::new()
    }

    async fn stats(
        &self,
        namespace: &str,
        since: Timestamp,
        now: Option<Timestamp>,
    ) -> Result<(Vec<LiveCount>, Vec<StatRow>)> {
        let (namespace, since, now) = (namespace.to_owned(), since.timestamp_micros(), self.now(now));
        let read = move |conn: &Connection| {
            Ok((backlog::backlog(conn, &namespace, now)?, stats::ended(conn, &namespace, since)?))
        };
        self.read(read).await
    }
}
