//! The store on PostgreSQL: set-based statements over arrays, on a few connections.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use self::again::despite_deadlocks;
use self::connections::Connections;
pub(crate) use self::handle::Tx;
use self::lease::FinishedLease;
use self::notify::Ready;
use super::{
    ActivitySince, AddedSubscription, AppliedChanges, BehindCheck, Claim, ClaimStore, Claimed, DeliveryChange,
    EventHead, HeldDelivery, NewDelivery, NewSubscription, PastEvents, PendingPosition, PreparedEvent, PreparedNode,
    PreparedToken, PublishOutcome, RecentActivity, RouteRequest, Store, WatchRequest, WatchResult,
};
use crate::admin::tokens::Token;
use crate::clock::{Clock, Timestamp};
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
use crate::queue::bad_url;
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::{Attempt, HandlerResult};
use crate::queue::wake::{ReadyLane, WakeRegistry, lock};
use crate::topology::lanes::{Lane, LaneKey};
use crate::topology::{Namespace, Subscription, Topology};

mod activity;
mod again;
pub(crate) mod arrive;
mod backlog;
mod cancel;
mod claim;
mod complete;
mod connections;
mod dead_letters;
pub(crate) mod diagnose;
mod drop_month;
mod enqueue;
mod error;
mod explain;
mod fire;
mod group;
pub(crate) mod hand_over;
mod handle;
mod history;
mod hold;
mod inspect;
mod keeping;
mod lanes;
mod lease;
mod list;
mod look;
mod maintain;
mod maintenance_tasks;
mod migrate;
mod notify;
mod overview;
mod partitions;
mod pooler;
mod prune;
mod publish;
mod publish_one;
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
#[cfg(test)]
mod tests;
mod token;
mod topology;
mod transition;

/// Every statement of the hot path has one right plan, by index, whatever the statistics say.
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

/// For statements that go through all that a namespace has: each page that has some of it is read once, in order. By an
/// index alone pages are read again and again; without one, those of others are read as well.
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

/// Statements rely on seeing what was committed before they began, whatever the server's default is.
macro_rules! read_committed {
    () => {
        "SET default_transaction_isolation = 'read committed'; "
    };
}

const HOT: &str = concat!(read_committed!(), fix_planner!("SET"));

const COLD: &str = concat!(read_committed!(), "SET jit = off");

/// How many connections of each kind. Batches make more of them pointless.
const CLAIMS: usize = 2;
const WRITES: usize = 6;
const MAINTENANCE: usize = 1;
const ROUTES: usize = 2;
const RENEWALS: usize = 1;
const READS: usize = 4;

/// How often a call is repeated after a deadlock.
const DEADLOCKS_MAX: usize = 5;

pub(crate) struct PgStore {
    options: PgConnectOptions,
    clock: Clock,
    claims: Connections,
    writes: Connections,
    maintenance: Connections,
    /// For routers.
    routes: Connections,
    /// For leases: all others may be waiting for somebody's transaction.
    renewals: Connections,
    reads: Arc<Connections>,
    /// For transactions that handlers work in.
    handlers: handle::Transactions,
    /// For each subscription: no lease was due up to this time.
    leases_checked: Mutex<HashMap<i64, Timestamp>>,
    /// To the task that removes leases without deliveries.
    finished_leases: mpsc::UnboundedSender<FinishedLease>,
    /// To the task that notifies other processes.
    ready: mpsc::UnboundedSender<Ready>,
    /// Who we are among those that notify.
    own: u64,
    /// The number of the last probe that came back as a notification.
    heard: Arc<watch::Sender<u64>>,
    /// The task that hears the notifications of others.
    listening: Mutex<Option<AbortHandle>>,
    /// Partitions of which it was said that they cannot be made.
    lamented: Mutex<BTreeSet<String>>,
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
        partitions::add_ahead(&mut connection).await?;
        migrate::add_default_namespace(&mut connection, clock.overridden()).await?;
        connection.done();
        let (ready, inbox) = mpsc::unbounded_channel();
        let own = fastrand::u64(notify::NOBODY + 1..);
        tokio::spawn(notify::send(inbox, reads.clone(), own));
        let (finished_leases, finished) = mpsc::unbounded_channel();
        tokio::spawn(lease::remove_finished(finished, reads.clone()));
        Ok(PgStore {
            leases_checked: Mutex::default(),
            clock,
            finished_leases,
            claims: Connections::new(options.clone(), HOT, CLAIMS),
            writes: Connections::new(options.clone(), HOT, WRITES),
            maintenance: Connections::new(options.clone(), HOT, MAINTENANCE),
            routes: Connections::new(options.clone(), HOT, ROUTES),
            renewals: Connections::new(options.clone(), HOT, RENEWALS),
            handlers: handle::Transactions::new(options.clone(), handler_connections),
            reads,
            options,
            ready,
            own,
            heard: Arc::default(),
            listening: Mutex::default(),
            lamented: Mutex::default(),
        })
    }

    fn stop_listening(&self) {
        if let Some(listening) = lock(&self.listening).take() {
            listening.abort();
        }
    }

    /// Whether nothing was said about this partition yet.
    fn is_news(&self, partition: &str) -> bool {
        lock(&self.lamented).insert(partition.to_owned())
    }

    /// Tells other processes that deliveries are ready in these lanes, or will be.
    fn notify(&self, namespace: &str, lanes: Vec<ReadyLane>) {
        if !lanes.is_empty() {
            self.tell(Ready { namespace: namespace.to_owned(), lanes });
        }
    }

    /// Tells other processes that deliveries are ready somewhere in the namespace.
    fn notify_anywhere(&self, namespace: &str) {
        self.tell(Ready { namespace: namespace.to_owned(), lanes: Vec::new() });
    }

    fn tell(&self, ready: Ready) {
        // Fails only when the store is being dropped.
        let _ = self.ready.send(ready);
    }
}

fn options(url: &str) -> Result<PgConnectOptions> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| bad_url(url, &error.to_string()))?;
    // Statements are traced by their caller, where they mean something.
    Ok(options.application_name("windlass").disable_statement_logging())
}

/// The database's schema version, and the newest that this build knows.
pub(crate) async fn schema_version(url: &str) -> Result<(i64, i64)> {
    let mut connection = options(url)?.connect().await.map_err(error::from_sqlx)?;
    Ok((migrate::found(&mut connection).await?, migrate::KNOWN))
}

#[async_trait]
impl ClaimStore for PgStore {
    async fn claim(&self, claim: &Claim, now: Option<Timestamp>) -> Result<Claimed> {
        despite_deadlocks!(claim::claim(self, claim, now))
    }

    async fn check_behind(&self, claim: &Claim, from: i64, to: i64, now: Option<Timestamp>) -> Result<BehindCheck> {
        claim::check_behind(self, claim, from, to, now).await
    }

    async fn look(&self, namespace: &str, request: &WatchRequest, now: Option<Timestamp>) -> Result<WatchResult> {
        let look = look::look(self, namespace, request, now).await?;
        look.ok_or_else(|| Error::NamespaceNotFound { namespace: namespace.to_owned() })
    }

    async fn expired_leases(
        &self,
        namespace: &str,
        subscriptions: &[i64],
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<LiveDelivery>> {
        despite_deadlocks!(lease::expired_leases(self, namespace, subscriptions, limit, now))
    }
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
        let listen = notify::listen(self.options.clone(), wakes, self.own, self.heard.clone());
        *lock(&self.listening) = Some(tokio::spawn(listen).abort_handle());
    }

    async fn now(&self, now: Option<Timestamp>) -> Result<Timestamp> {
        activity::now(self, now).await
    }

    async fn close(&self) {
        self.stop_listening();
        for connections in [&self.claims, &self.writes, &self.maintenance, &self.routes, &self.renewals, &self.reads] {
            connections.close().await;
        }
        self.handlers.close().await;
    }

    async fn topology(&self, namespace: &str) -> Result<Option<Topology>> {
        topology::topology(self, namespace).await
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        topology::namespaces(self).await
    }

    async fn put_namespace(
        &self,
        namespace: &str,
        metadata: Option<&RawValue>,
        policy: Option<&NamespacePolicy>,
        now: Option<Timestamp>,
    ) -> Result<()> {
        despite_deadlocks!(topology::put_namespace(self, namespace, metadata.map(RawValue::get), policy, now))
    }

    async fn pause_namespace(&self, namespace: &str, paused: bool) -> Result<()> {
        topology::pause_namespace(self, namespace, paused).await
    }

    async fn pause_type(&self, namespace: &str, pattern: &str, paused: bool) -> Result<()> {
        topology::pause_type(self, namespace, pattern, paused).await
    }

    async fn add_subscription(
        &self,
        route: &RouteRequest,
        new: &NewSubscription,
        now: Option<Timestamp>,
    ) -> Result<AddedSubscription> {
        despite_deadlocks!(topology::add_subscription(self, route, new, now))
    }

    async fn pause_subscription(&self, namespace: &str, subscription: &str, paused: bool) -> Result<bool> {
        despite_deadlocks!(topology::pause_subscription(self, namespace, subscription, paused))
    }

    async fn remove_subscription(&self, namespace: &str, subscription: &str) -> Result<bool> {
        despite_deadlocks!(topology::remove_subscription(self, namespace, subscription))
    }

    async fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>> {
        despite_deadlocks!(lanes::add_lanes(self, namespace, lanes))
    }

    async fn lanes_after(&self, namespace: &str, number: i64) -> Result<Vec<Lane>> {
        lanes::lanes_after(self, namespace, number).await
    }

    async fn remove_empty_lanes(
        &self,
        namespace: &str,
        min_age: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        lanes::remove_empty_lanes(self, namespace, min_age, limit, now).await
    }

    async fn past_events(&self, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents> {
        maintain::past_events(self, namespace, of, from, limit).await
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
        despite_deadlocks!(maintain::backfill(self, namespace, subscription, deliveries, from, next, now))
    }

    async fn add_token(&self, token: &PreparedToken, now: Option<Timestamp>) -> Result<Token> {
        token::add(self, token, now).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        token::all(self).await
    }

    async fn remove_token(&self, token_id: &str) -> Result<bool> {
        token::remove(self, token_id).await
    }

    async fn register_node(
        &self,
        namespace: &str,
        node: &PreparedNode,
        max: usize,
        now: Option<Timestamp>,
    ) -> Result<Option<NodeView>> {
        register::register(self, namespace, node, max, now).await
    }

    async fn touch_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        register::touch(self, namespace, node_id, now).await
    }

    async fn stop_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool> {
        register::stop(self, namespace, node_id, now).await
    }

    async fn nodes(&self, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>> {
        register::nodes(self, namespace, node_id).await
    }

    async fn publish(
        &self,
        namespace: &str,
        version: i64,
        events: &[&PreparedEvent],
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<PublishOutcome>>> {
        despite_deadlocks!(publish::publish(self, namespace, version, events, now))
    }

    async fn expired(&self, namespace: &str, limit: usize, now: Option<Timestamp>) -> Result<Vec<LiveDelivery>> {
        maintain::expired(self, namespace, limit, now).await
    }

    async fn free(
        &self,
        namespace: &str,
        lanes: &[i64],
        after: Option<PendingPosition>,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<(LiveDelivery, PendingPosition)>> {
        cancel::free(self, namespace, lanes, after, newest, limit).await
    }

    async fn held(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<LiveDelivery>>> {
        hold::held(self, namespace, holders).await
    }

    async fn transition(
        &self,
        namespace: &str,
        changes: &[DeliveryChange],
        now: Option<Timestamp>,
    ) -> Result<AppliedChanges> {
        transition::transition(self, namespace, changes, now).await
    }

    async fn store_handler_results(
        &self,
        namespace: &str,
        results: &[InterimResult],
        now: Option<Timestamp>,
    ) -> Result<Vec<bool>> {
        despite_deadlocks!(results::store(self, namespace, results, now))
    }

    async fn handler_results(&self, namespace: &str, live: &[LiveDelivery]) -> Result<Vec<Vec<HandlerResult>>> {
        results::of(self, namespace, live).await
    }

    async fn recorded(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<Attempt>>> {
        hold::recorded(self, namespace, holders).await
    }

    async fn start(
        &self,
        namespace: &str,
        live: &[LiveDelivery],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        despite_deadlocks!(hold::start(self, namespace, live, now))
    }

    async fn extend(
        &self,
        namespace: &str,
        live: &[(LiveDelivery, Duration)],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>> {
        despite_deadlocks!(hold::extend(self, namespace, live, now))
    }

    async fn dead_letter_groups(&self, namespace: &str, rows: usize, limit: usize) -> Result<Vec<DeadLetterGroup>> {
        dead_letters::groups(self, namespace, rows, limit).await
    }

    async fn dead_letters(&self, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>> {
        dead_letters::dead_letters(self, namespace, filter).await
    }

    async fn redrive(
        &self,
        namespace: &str,
        letters: &[(DeadLetter, NewDelivery)],
        now: Option<Timestamp>,
    ) -> Result<usize> {
        despite_deadlocks!(dead_letters::redrive(self, namespace, letters, now))
    }

    async fn purge(&self, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize> {
        dead_letters::purge(self, namespace, filter, limit).await
    }

    async fn due_maintenance_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
        now: Option<Timestamp>,
    ) -> Result<Vec<(String, MaintenanceTask)>> {
        maintenance_tasks::due(self, namespace, tasks, now).await
    }

    async fn acquire_maintenance_tasks(
        &self,
        namespace: &str,
        tasks: &[MaintenanceTask],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<MaintenanceTask>> {
        maintenance_tasks::take(self, namespace, tasks, worker_id, now).await
    }

    async fn extend_maintenance_task(
        &self,
        namespace: &str,
        task: MaintenanceTask,
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        maintenance_tasks::hold(self, namespace, task, worker_id, now).await
    }

    async fn record_maintenance_runs(
        &self,
        namespace: &str,
        runs: &[MaintenanceRun],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()> {
        maintenance_tasks::note(self, namespace, runs, worker_id, now).await
    }

    async fn maintenance_tasks(&self, namespace: &str) -> Result<Vec<MaintenanceTaskView>> {
        maintenance_tasks::maintenance_tasks(self, namespace).await
    }

    async fn prune(&self, namespace: &str, node_kept: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize> {
        despite_deadlocks!(prune::prune(self, namespace, node_kept, limit, now))
    }

    async fn prune_fires(
        &self,
        namespace: &str,
        kept: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize> {
        despite_deadlocks!(prune::fires(self, namespace, kept, limit, now))
    }

    async fn add_samples(&self, namespace: &str, rows: &[SampleRow]) -> Result<()> {
        despite_deadlocks!(samples::add(self, namespace, rows))
    }

    async fn sampled_lately(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<String>> {
        samples::sampled_lately(self, namespace, now).await
    }

    async fn thin_samples(&self, namespace: &str, level: &Level, before: Timestamp, limit: usize) -> Result<usize> {
        despite_deadlocks!(samples::thin(self, namespace, level, before, limit))
    }

    async fn samples(&self, namespace: &str, points: Points) -> Result<Points> {
        samples::samples(self, namespace, points).await
    }

    async fn exists(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<bool>> {
        inspect::exists(self, namespace, event_ids).await
    }

    async fn get(&self, namespace: &str, ids: &[i64]) -> Result<Vec<Option<EventView>>> {
        inspect::get_all(self, namespace, ids).await
    }

    async fn log(&self, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>> {
        inspect::log(self, namespace, event_id).await
    }

    async fn list(&self, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>> {
        list::list(self, namespace, filter).await
    }

    async fn recent(&self, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity> {
        activity::recent(self, namespace, since, limit).await
    }

    async fn heads(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>> {
        activity::heads(self, namespace, event_ids).await
    }

    async fn stuck(
        &self,
        namespace: &str,
        older_than: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<StuckDelivery>> {
        inspect::stuck(self, namespace, older_than, limit, now).await
    }

    async fn workers(&self, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>> {
        inspect::workers(self, namespace, since).await
    }

    async fn backlog(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>> {
        backlog::backlog(self, namespace, now).await
    }

    async fn counts(&self, namespace: &str, reasons: &Reasons, now: Option<Timestamp>) -> Result<Counts> {
        overview::counts(self, namespace, reasons, now).await
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

    async fn stats(
        &self,
        namespace: &str,
        since: Timestamp,
        now: Option<Timestamp>,
    ) -> Result<(Vec<LiveCount>, Vec<StatRow>)> {
        inspect::stats(self, namespace, since, now).await
    }
}
