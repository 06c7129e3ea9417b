//! The database of a queue: one trait per verb, implemented on PostgreSQL and on SQLite.
//!
//! `<verb>.rs` declares a trait with the types that only it uses; `postgres/<verb>.rs` and `sqlite/<verb>.rs` implement
//! it. [`Store`] combines the traits. Files without a trait of their own are steps that several verbs share
//! (`enqueue.rs`, `group.rs`, `run.rs`, `row.rs`) or belong to one database (`postgres/notify.rs`, `sqlite/writer`).
//!
//! Stores apply decisions; they make none: see [`crate::queue::decide`]. No other module contains SQL. Methods that write
//! take a batch, run one transaction and return after its commit. `now` is the time to use, or `None` for the database's
//! own clock.
//!
//! Start with `publish.rs`, `claim.rs` and `transition.rs`.

use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::observe::pools::PoolView;
use crate::queue::wake::WakeRegistry;

mod activity;
mod backfill;
mod cancel;
mod claim;
mod clock_check;
mod dead_letters;
mod diagnose;
mod expire;
mod explain;
mod fire;
mod handler_tx;
mod heartbeat;
mod history;
mod inspect;
mod lanes;
mod maintenance_tasks;
mod months;
mod nodes;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod prune;
mod publish;
mod reschedule;
mod results;
mod retain;
mod route;
mod samples;
mod schedules;
mod search;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod stats;
mod tokens;
mod topology;
mod transition;
mod watch;

pub(crate) use activity::{ActivitySince, ActivityStore, EventHead, RecentActivity};
pub(crate) use backfill::{BackfillStore, PastEvents};
pub(crate) use cancel::{CancelStore, PendingPosition};
pub(crate) use claim::{
    BehindCheck, Claim, ClaimSlot, ClaimSource, ClaimStore, Claimed, LaneSource, LeaseTimes, ReadyPosition, RunHead,
    StreamPosition,
};
pub(crate) use clock_check::ClockCheckStore;
pub(crate) use dead_letters::DeadLetterStore;
pub(crate) use diagnose::{Checked, DiagnoseStore, ROWS_MAX};
pub(crate) use expire::ExpireStore;
pub(crate) use explain::{DeliveryState, ExplainStore, GroupHead};
pub(crate) use fire::{FireOutcome, FireOutcomes, FireStore, Firing, Tick};
pub(crate) use handler_tx::{AttemptInTx, TxCompletion, TxOutcome};
pub(crate) use heartbeat::{HeartbeatStore, HeldBy, HeldDelivery};
pub(crate) use history::{HistoryStore, Imported};
pub(crate) use inspect::InspectStore;
pub(crate) use lanes::LaneStore;
pub(crate) use maintenance_tasks::MaintenanceTaskStore;
#[cfg(feature = "postgres")]
pub(crate) use months::AllRules;
pub(crate) use months::{DropOutcome, ExpiredMonths, MonthStore};
pub(crate) use nodes::{NodeStore, PreparedNode};
pub(crate) use prune::PruneStore;
pub(crate) use publish::{NewDelivery, PreparedEvent, PublishOutcome, PublishStore};
pub(crate) use reschedule::{AheadSchedule, RescheduleStore, Rescheduled, SchedulesAhead};
pub(crate) use results::ResultStore;
pub(crate) use retain::{DeletedHistory, EndedPage, MarkStep, Retain, RetentionStore};
pub(crate) use route::{
    Arrival, ArrivalsPoll, Plan, ROUTE_BATCH, Rejection, RoutePosition, RouteRequest, RouteStore, Routed, Routing,
    Snapshot,
};
pub(crate) use samples::SampleStore;
pub(crate) use schedules::{DueSchedules, PreparedSchedule, PutOutcome, SchedulePosition, ScheduleStore};
pub(crate) use search::{EventFilter, SearchStep, SearchStore, Source};
pub(crate) use stats::StatsStore;
pub(crate) use tokens::{PreparedToken, TokenStore};
pub(crate) use topology::{AddedSubscription, NewSubscription, TopologyStore};
pub(crate) use transition::{AppliedChanges, AttemptRecord, ChangeGuard, DeliveryChange, TransitionStore};
pub(crate) use watch::{WatchRequest, WatchResult, WatchStore};

/// An open database.
#[async_trait]
pub(crate) trait Store:
    ActivityStore
    + BackfillStore
    + CancelStore
    + ClaimStore
    + ClockCheckStore
    + DeadLetterStore
    + DiagnoseStore
    + ExpireStore
    + ExplainStore
    + FireStore
    + HeartbeatStore
    + HistoryStore
    + InspectStore
    + LaneStore
    + MaintenanceTaskStore
    + NodeStore
    + PruneStore
    + PublishStore
    + RescheduleStore
    + ResultStore
    + RetentionStore
    + RouteStore
    + SampleStore
    + ScheduleStore
    + SearchStore
    + StatsStore
    + TokenStore
    + TopologyStore
    + TransitionStore
    + WatchStore
    + Send
    + Sync
    + 'static
{
    /// The PostgreSQL store, for transactions that are shared with the application.
    #[cfg(feature = "postgres")]
    fn postgres(&self) -> Option<&postgres::PgStore> {
        None
    }

    /// The SQLite store, for transactions that are shared with the application.
    #[cfg(feature = "sqlite")]
    fn sqlite(&self) -> Option<&sqlite::SqliteStore> {
        None
    }

    /// The name of the database system.
    fn name(&self) -> &'static str;

    /// How many batches of one kind callers should have in flight.
    fn batches_in_flight(&self) -> usize;

    /// Notifies `wakes` of changes by other processes until the store is closed.
    async fn watch(&self, wakes: Arc<WakeRegistry>);

    /// The time that a statement with this `now` uses.
    async fn now(&self, now: Option<Timestamp>) -> Result<Timestamp>;

    /// The connection pools of the store.
    fn pools(&self) -> Vec<PoolView>;

    /// Closes the store. Later calls fail with [`Error::Closed`](crate::error::Error::Closed).
    async fn close(&self);
}
