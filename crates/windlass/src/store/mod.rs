//! What a database has to do for a queue. Stores apply; they decide nothing.
//!
//! Every method works on a batch, in one transaction, and returns only after it is committed. `now`
//! is the instant to use, or `None` for the database's own clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::value::RawValue;

use crate::admin::scopes::Scope;
use crate::admin::tokens::{Hash, Token};
use crate::clock::{Timestamp, millis_since};
use crate::error::Result;
use crate::event::delivery::{Lease, LiveDelivery};
use crate::event::{Event, NewEvent};
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
use crate::policy::{NamespacePolicy, PolicyOverrides};
use crate::queue::decide::{Transition, When};
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::{Action, Attempt, HandlerResult};
use crate::queue::wake::{ReadyLane, WakeRegistry};
use crate::topology::lanes::{Lane, LaneKey};
use crate::topology::{Namespace, Subscription, Topology};

mod claim;
mod diagnose;
mod explain;
mod history;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod route;
mod schedules;
mod search;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

pub(crate) use claim::{
    BehindCheck, Claim, ClaimSlot, ClaimSource, ClaimStore, Claimed, LaneSource, LeaseTimes, ReadyPosition, RunHead,
    StreamPlace, WatchRequest, WatchResult,
};
pub(crate) use diagnose::{Checked, DiagnoseStore, ROWS_MAX};
pub(crate) use explain::{DeliveryState, ExplainStore, GroupHead};
#[cfg(feature = "postgres")]
pub(crate) use history::AllRules;
pub(crate) use history::{
    DeletedHistory, DropOutcome, EndedPage, ExpiredMonths, HistoryStore, Imported, MarkStep, MonthStore, Retain,
};
pub(crate) use schedules::{
    AheadSchedule, DueSchedules, FireOutcome, FireOutcomes, Firing, PreparedSchedule, PutOutcome, Rescheduled,
    SchedulePosition, ScheduleStore, SchedulesAhead, Tick,
};

pub(crate) use route::{
    Arrival, ArrivalsLook, Plan, ROUTE_BATCH, Rejection, RoutePosition, RouteRequest, RouteStore, Routed, Routing,
    Snapshot,
};
pub(crate) use search::{EventFilter, SearchStep, SearchStore, Source};

/// An event with everything resolved, ready to be stored.
#[derive(Debug, Clone)]
pub(crate) struct PreparedEvent {
    pub event: NewEvent,
    /// How long its key is remembered.
    pub key_window: Duration,
    /// How long after it may first start it expires, unless it says when; `None`: never.
    pub expires_in: Option<Duration>,
    /// One for each matching subscription.
    pub deliveries: Vec<NewDelivery>,
}

#[derive(Debug, Clone)]
pub(crate) struct NewDelivery {
    pub subscription_id: i64,
    pub lane_id: i64,
    pub subscription: String,
    pub max_retries: Option<u32>,
    pub attempts_limit: u32,
}

impl NewDelivery {
    pub fn ready_lane(&self) -> ReadyLane {
        ReadyLane { subscription_id: self.subscription_id, lane_id: self.lane_id, rewind: false }
    }
}

/// What a publish stored, or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PublishOutcome {
    pub event_id: i64,
    pub created_at: Timestamp,
    /// The key was known: this is the first event, and nothing was stored.
    pub duplicate: bool,
    /// Its deliveries are left to the router.
    pub arrived: bool,
}

impl PublishOutcome {
    pub fn new(event_id: i64, created_at: Timestamp) -> PublishOutcome {
        PublishOutcome { event_id, created_at, duplicate: false, arrived: false }
    }

    pub fn duplicate_of(event_id: i64, created_at: Timestamp) -> PublishOutcome {
        PublishOutcome { duplicate: true, ..PublishOutcome::new(event_id, created_at) }
    }
}

/// What became of changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct AppliedChanges {
    /// One for each change; `None` where its guard did not hold.
    pub attempts: Vec<Option<Attempt>>,
    /// The lanes in which a delivery became ready, now or for later.
    pub freed: Vec<ReadyLane>,
}

/// A place in a lane: when it is ready – `None`: not before its group lets it – and its event.
pub(crate) type PendingPosition = (Option<Timestamp>, i64);

/// Who claims to hold a delivery.
#[derive(Debug, Clone)]
pub(crate) struct HeldDelivery {
    pub event_id: i64,
    pub subscription: String,
    pub by: HeldBy,
}

#[derive(Debug, Clone)]
pub(crate) enum HeldBy {
    Lease(Lease),
    Worker(String),
    /// Whoever holds it, or nobody: for admin acts.
    Anyone,
}

/// What must still be true of a delivery for a change to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeGuard {
    /// This lease is the current one.
    Lease(Lease),
    /// This lease is the current one, and it has run out.
    ExpiredLease(Lease),
    /// Nobody holds it.
    Free,
}

/// A change of one live delivery. Nothing happens where the guard does not hold.
#[derive(Debug, Clone)]
pub(crate) struct DeliveryChange {
    pub live: LiveDelivery,
    pub guard: ChangeGuard,
    pub action: Action,
    pub transition: Transition,
    pub record: AttemptRecord,
    /// What was reported of its handlers; see `results.rs` for what is kept of them.
    pub results: Vec<HandlerResult>,
    /// The worker has reported it as done, so its run goes on.
    pub succeeded: bool,
}

impl DeliveryChange {
    /// Whether the delivery goes back to its old place in the order.
    pub fn keeps_ready_time(&self) -> bool {
        matches!(self.transition, Transition::Requeue { when: When::Unchanged, .. })
    }
}

/// What is written down with an attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttemptRecord {
    pub status_code: Option<i32>,
    pub execution_time_ms: Option<u64>,
    pub error: Option<String>,
    pub detail: Option<Box<RawValue>>,
}

/// A new subscription, and the deliveries it gets of what was published before.
#[derive(Debug, Clone)]
pub(crate) struct NewSubscription {
    pub subscription: String,
    pub types: Vec<String>,
    pub tags: Vec<String>,
    pub policy: PolicyOverrides,
    /// `None`: from now.
    pub starts_at: Option<Timestamp>,
}

/// What came of an attempt to create a subscription.
pub(crate) enum AddedSubscription {
    /// Created. The batches were routed before.
    Added(Box<Subscription>, Vec<Routed>),
    /// One of that name exists.
    Exists,
    /// The namespace has another version. Nothing was done.
    Outdated,
}

/// A token with everything resolved, ready to be stored. Its secret is not in it.
#[derive(Debug, Clone)]
pub(crate) struct PreparedToken {
    pub token_id: String,
    pub name: String,
    pub scopes: Vec<Scope>,
    pub namespaces: Vec<String>,
    pub hash: Hash,
    /// `None`: never.
    pub expires_in: Option<Duration>,
}

/// A node with everything resolved, ready to be registered.
#[derive(Debug, Clone)]
pub(crate) struct PreparedNode {
    pub node_id: String,
    pub display_name: Option<String>,
    pub description: Option<String>,
    pub metadata: Box<RawValue>,
    pub event_types: Vec<String>,
}

/// A page of past events that a new subscription may want.
#[derive(Debug, Clone)]
pub(crate) struct PastEvents {
    pub events: Vec<Event>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<i64>,
}

/// What was read before, of one namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActivitySince {
    /// Events up to this one.
    pub event_id: i64,
    /// Attempts up to this instant, in microseconds, and id.
    pub ended: (i64, i64),
}

/// What happened lately, the newest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentActivity {
    pub published: Vec<EventHead>,
    /// With ids that tell attempts of one instant apart.
    pub ended: Vec<(i64, Attempt)>,
}

/// What an event is about.
#[derive(Debug, Clone)]
pub(crate) struct EventHead {
    pub event_id: i64,
    pub event_type: String,
    pub title: Option<String>,
    pub tags: String,
    pub created_at: Timestamp,
}

/// What is committed together with what a handler wrote.
pub(crate) enum TxCompletion {
    /// The end of the delivery.
    End(Box<AttemptInTx>),
    /// That the handler is done, while the delivery goes on.
    Note(InterimResult),
}

/// The end of an attempt whose handlers run in a transaction.
pub(crate) struct AttemptInTx {
    pub change: DeliveryChange,
    /// When the handlers of the attempt began.
    pub begun: Instant,
}

impl AttemptInTx {
    /// The change if the attempt ends now.
    pub fn change(&self) -> DeliveryChange {
        let mut change = self.change.clone();
        change.record.execution_time_ms = Some(millis_since(self.begun));
        change
    }
}

/// How a handler's transaction ended.
pub(crate) enum TxOutcome {
    /// Committed, with this change of the delivery.
    Changed(Box<DeliveryChange>, AppliedChanges),
    /// Committed. The delivery goes on.
    Noted,
    /// Rolled back: the lease is not the current one.
    Lost,
}

#[async_trait]
pub(crate) trait Store:
    ClaimStore
    + DiagnoseStore
    + ExplainStore
    + HistoryStore
    + RouteStore
    + ScheduleStore
    + SearchStore
    + Send
    + Sync
    + 'static
{
    /// The store itself, for transactions that are shared with its users.
    #[cfg(feature = "postgres")]
    fn postgres(&self) -> Option<&postgres::PgStore> {
        None
    }

    #[cfg(feature = "sqlite")]
    fn sqlite(&self) -> Option<&sqlite::SqliteStore> {
        None
    }

    /// Which database it is on.
    fn name(&self) -> &'static str;

    /// How many batches of one kind the database takes at once.
    fn batches_in_flight(&self) -> usize;

    /// Tells `wakes` of what other processes do, for as long as the store is open.
    async fn watch(&self, wakes: Arc<WakeRegistry>);

    /// The instant that a statement would use.
    async fn now(&self, now: Option<Timestamp>) -> Result<Timestamp>;

    /// Stops; calls after this fail with `TxOutcome`.
    async fn close(&self);

    // -- namespaces, subscriptions, lanes

    /// The whole topology, or `None` for an unknown namespace.
    async fn topology(&self, namespace: &str) -> Result<Option<Topology>>;

    async fn namespaces(&self) -> Result<Vec<Namespace>>;

    /// Creates the namespace with its `main` subscription, or replaces what is `Some`; grows the version.
    async fn put_namespace(
        &self,
        namespace: &str,
        metadata: Option<&RawValue>,
        policy: Option<&NamespacePolicy>,
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// Grows the version. The caller has checked that the namespace exists.
    async fn pause_namespace(&self, namespace: &str, paused: bool) -> Result<()>;

    /// Adds the pattern to the paused types, or takes it out; grows the version.
    async fn pause_type(&self, namespace: &str, pattern: &str, paused: bool) -> Result<()>;

    /// Routes everything that has arrived, then creates the subscription and increments the version, in one transaction. A
    /// subscription that starts in the past begins with `backfill_from` 0.
    async fn add_subscription(
        &self,
        route: &RouteRequest,
        new: &NewSubscription,
        now: Option<Timestamp>,
    ) -> Result<AddedSubscription>;

    /// Grows the version. Says whether there was one.
    async fn pause_subscription(&self, namespace: &str, subscription: &str, paused: bool) -> Result<bool>;

    /// Removes it with its lanes, live deliveries, groups, dead letters and handler results; grows the version.
    async fn remove_subscription(&self, namespace: &str, subscription: &str) -> Result<bool>;

    /// Creates the lanes that are missing; the ids of all of them, in order. Lanes of a namespace are numbered in the
    /// order of their commits.
    async fn add_lanes(&self, namespace: &str, lanes: &[LaneKey]) -> Result<Vec<i64>>;

    /// The lanes with a larger number, by number.
    async fn lanes_after(&self, namespace: &str, number: i64) -> Result<Vec<Lane>>;

    /// Removes up to `limit` lanes that have no deliveries and were created at least `min_age` ago, and increments the
    /// version if there were any; how many. Skips the namespace while a transaction that has published is open.
    async fn remove_empty_lanes(
        &self,
        namespace: &str,
        min_age: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<usize>;

    /// Events with an id of at least `from`, published from the subscription's start to its creation,
    /// by id, `limit` at most.
    async fn past_events(&self, namespace: &str, of: &Subscription, from: i64, limit: usize) -> Result<PastEvents>;

    /// Adds deliveries of stored events and notes where to go on (`None`: all done) in the same
    /// transaction. An event that has, or had, a delivery for the subscription is left out. `false`: the subscription was
    /// removed, or somebody else has gone on from there, and nothing was done.
    async fn backfill(
        &self,
        namespace: &str,
        subscription: &str,
        deliveries: &[(Event, NewDelivery)],
        from: i64,
        next: Option<i64>,
        now: Option<Timestamp>,
    ) -> Result<bool>;

    // -- API tokens, which belong to the whole database

    /// Stores it. The id, being random, is taken to be new.
    async fn add_token(&self, token: &PreparedToken, now: Option<Timestamp>) -> Result<Token>;

    /// All of them, the oldest first.
    async fn tokens(&self) -> Result<Vec<Token>>;

    /// Says whether there was one.
    async fn remove_token(&self, token_id: &str) -> Result<bool>;

    // -- nodes; their status is not the store's to tell

    /// Adds it, or replaces what is known of it but for when it was registered, and notes that it was heard of. `None`:
    /// it would be new, and the namespace has `max` of them.
    async fn register_node(
        &self,
        namespace: &str,
        node: &PreparedNode,
        max: usize,
        now: Option<Timestamp>,
    ) -> Result<Option<NodeView>>;

    /// Notes that it was heard of. Says whether there is one.
    async fn touch_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool>;

    /// Notes that it stopped, unless that is noted. Says whether there is one.
    async fn stop_node(&self, namespace: &str, node_id: &str, now: Option<Timestamp>) -> Result<bool>;

    /// All of them, or the one of this id, by id.
    async fn nodes(&self, namespace: &str, node_id: Option<&str>) -> Result<Vec<NodeView>>;

    // -- the work

    /// Stores all events or none. `None`: `version` is not the namespace's; nothing was stored.
    async fn publish(
        &self,
        namespace: &str,
        version: i64,
        events: &[&PreparedEvent],
        now: Option<Timestamp>,
    ) -> Result<Option<Vec<PublishOutcome>>>;

    /// Free deliveries whose deadline has passed.
    async fn expired(&self, namespace: &str, limit: usize, now: Option<Timestamp>) -> Result<Vec<LiveDelivery>>;

    /// Free deliveries in these lanes of events up to `newest`: lane by lane, by place in it, from after a place in the
    /// first.
    async fn free(
        &self,
        namespace: &str,
        lanes: &[i64],
        after: Option<PendingPosition>,
        newest: i64,
        limit: usize,
    ) -> Result<Vec<(LiveDelivery, PendingPosition)>>;

    /// The live delivery each holder speaks of; `None` where it does not hold it.
    async fn held(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<LiveDelivery>>>;

    /// Applies each change whose guard holds, with what it says of handler results, and moves on the groups concerned.
    async fn transition(
        &self,
        namespace: &str,
        changes: &[DeliveryChange],
        now: Option<Timestamp>,
    ) -> Result<AppliedChanges>;

    /// Stores each result whose delivery still has the lease; whether it did. A delivery has at most one result for each
    /// handler in the call.
    async fn store_handler_results(
        &self,
        namespace: &str,
        results: &[InterimResult],
        now: Option<Timestamp>,
    ) -> Result<Vec<bool>>;

    /// The handler results that are kept of each delivery, by name.
    async fn handler_results(&self, namespace: &str, live: &[LiveDelivery]) -> Result<Vec<Vec<HandlerResult>>>;

    /// The newest attempt that each holder ended (for `Anyone`: the newest of all), if any.
    async fn recorded(&self, namespace: &str, holders: &[HeldDelivery]) -> Result<Vec<Option<Attempt>>>;

    /// Notes that work began; the moment of it, or `None` where the lease is lost.
    async fn start(
        &self,
        namespace: &str,
        live: &[LiveDelivery],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>>;

    /// Moves the end of each lease to this long from now; the new end, or `None` where it is lost.
    async fn extend(
        &self,
        namespace: &str,
        live: &[(LiveDelivery, Duration)],
        now: Option<Timestamp>,
    ) -> Result<Vec<Option<Timestamp>>>;

    // -- dead letters

    async fn dead_letters(&self, namespace: &str, filter: &DeadLetterFilter) -> Result<Page<DeadLetter>>;

    /// The newest dead letters, up to `rows`, by reason and type; the largest groups first, up to `limit`.
    async fn dead_letter_groups(&self, namespace: &str, rows: usize, limit: usize) -> Result<Vec<DeadLetterGroup>>;

    /// Moves these dead letters back into the queue with fresh retries; how many were still there.
    async fn redrive(
        &self,
        namespace: &str,
        letters: &[(DeadLetter, NewDelivery)],
        now: Option<Timestamp>,
    ) -> Result<usize>;

    /// Deletes up to `limit` dead letters that match, and their handler results; how many letters.
    async fn purge(&self, namespace: &str, filter: &DeadLetterFilter, limit: usize) -> Result<usize>;

    // -- tasks

    /// Those that are due and that nobody is at, of one namespace or of all. A task of the whole database is due in
    /// `default`.
    async fn due_maintenance_tasks(
        &self,
        namespace: Option<&str>,
        tasks: &[MaintenanceTask],
        now: Option<Timestamp>,
    ) -> Result<Vec<(String, MaintenanceTask)>>;

    /// Takes those that are still due; which.
    async fn acquire_maintenance_tasks(
        &self,
        namespace: &str,
        tasks: &[MaintenanceTask],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<Vec<MaintenanceTask>>;

    /// Goes on holding a task, unless somebody else took it meanwhile.
    async fn extend_maintenance_task(
        &self,
        namespace: &str,
        task: MaintenanceTask,
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// Writes down what came of tasks, and when they are due again, unless somebody else took them meanwhile.
    async fn record_maintenance_runs(
        &self,
        namespace: &str,
        runs: &[MaintenanceRun],
        worker_id: &str,
        now: Option<Timestamp>,
    ) -> Result<()>;

    /// All that were ever taken, by name.
    async fn maintenance_tasks(&self, namespace: &str) -> Result<Vec<MaintenanceTaskView>>;

    // -- leftovers

    /// Deletes handler results whose delivery is neither live nor a dead letter, nodes that were not heard of for
    /// `node_kept`, and keys whose window is over: of each at most `limit`. How many in all.
    async fn prune(&self, namespace: &str, node_kept: Duration, limit: usize, now: Option<Timestamp>) -> Result<usize>;

    /// Deletes at most `limit` records of what schedules fired longer ago than `kept`; how many.
    async fn prune_fires(&self, namespace: &str, kept: Duration, limit: usize, now: Option<Timestamp>)
    -> Result<usize>;

    // -- samples

    /// Adds these to what is stored of their span, time and type: counts add up, of depth and age the most is kept.
    async fn add_samples(&self, namespace: &str, rows: &[SampleRow]) -> Result<()>;

    /// The types of which something was live or counted in this minute or the last.
    async fn sampled_lately(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<String>>;

    /// Takes up to `limit` samples of the level from before this instant, the earliest first, and adds them to those
    /// that they become part of; how many.
    async fn thin_samples(&self, namespace: &str, level: &Level, before: Timestamp, limit: usize) -> Result<usize>;

    /// Adds the stored samples to the points, as of one moment; those of each span in the order of time.
    async fn samples(&self, namespace: &str, points: Points) -> Result<Points>;

    // -- inspection

    async fn exists(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<bool>>;

    async fn get(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<Option<EventView>>>;

    async fn log(&self, namespace: &str, event_id: i64) -> Result<Vec<LogEntry>>;

    async fn list(&self, namespace: &str, filter: &ListFilter) -> Result<Page<EventView>>;

    /// Events that were published and attempts that ended since then: of each at most `limit`, the newest. No
    /// attempt is among them whose event would have been seen only later.
    async fn recent(&self, namespace: &str, since: &ActivitySince, limit: usize) -> Result<RecentActivity>;

    /// What these events are about, as far as they are kept.
    async fn heads(&self, namespace: &str, event_ids: &[i64]) -> Result<Vec<EventHead>>;

    /// Deliveries held for longer than `older_than`, the earliest first.
    async fn stuck(
        &self,
        namespace: &str,
        older_than: Duration,
        limit: usize,
        now: Option<Timestamp>,
    ) -> Result<Vec<StuckDelivery>>;

    /// Who holds leases, or ended an attempt since `since`.
    async fn workers(&self, namespace: &str, since: Timestamp) -> Result<Vec<WorkerView>>;

    /// How live deliveries stand, by subscription and type: of those that have lanes.
    async fn backlog(&self, namespace: &str, now: Option<Timestamp>) -> Result<Vec<LiveCount>>;

    /// How much there is of everything else, by the reasons that dead letters are told apart by.
    async fn counts(&self, namespace: &str, reasons: &Reasons, now: Option<Timestamp>) -> Result<Counts>;

    /// Connections to the database, as far as they are kept in pools.
    fn pools(&self) -> Vec<PoolView>;

    /// How live deliveries stand, and counts of dead letters and of what ended since `since`: as of one moment.
    async fn stats(
        &self,
        namespace: &str,
        since: Timestamp,
        now: Option<Timestamp>,
    ) -> Result<(Vec<LiveCount>, Vec<StatRow>)>;
}
