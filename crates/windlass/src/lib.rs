//! A durable, at-least-once event queue and event bus in your own relational database: embedded SQLite or PostgreSQL.
//!
//! ```
//! use windlass::{Context, Envelope, Handled, NewEvent, Node, Queue};
//!
//! async fn shop(database: &str) -> windlass::Result<()> {
//!     let queue = Queue::open(database).await?; // "sqlite://shop.db" or "postgres://localhost/shop"
//!     queue.publish(NewEvent::new("user.created").payload("Ada")?).await?;
//!     Node::new(&queue, "shop-1").on("user.created", welcome).run_until(windlass::shutdown_signal()).await
//! }
//!
//! async fn welcome(event: Envelope, _cx: Context) -> Handled {
//!     let name: String = event.payload()?;
//!     println!("welcome, {name}");
//!     Ok(())
//! }
//! ```
//!
//! The guide, `docs/rust.md`, introduces the library step by step. `crates/windlass/examples` has complete programs.
//!
//! # Delivery guarantees
//!
//! An event is stored and synced when [`Queue::publish`] returns. Each matching subscription then gets a delivery of
//! the event, which ends as completed, canceled or a dead letter. Delivery is at least once: if a worker crashes or its
//! lease expires, another worker processes the delivery again. To apply an effect exactly once, write it in the
//! transaction that completes the delivery ([`Handler::in_pg_tx`], [`Handler::in_sqlite_tx`]) or make the handler
//! idempotent.
//!
//! # The main types
//!
//! Opening and publishing:
//!
//! - [`Queue`] is a handle to one namespace of a database. It publishes, claims, finishes, inspects and configures.
//!   [`OpenOptions`] has the settings with which it is opened.
//! - [`NewEvent`] is an event to publish, [`Published`] the result and [`Event`] the stored event. [`EventType`] ties
//!   an event type to the Rust type of its payload. [`Queue::publish_in`] publishes in a transaction of the
//!   application.
//!
//! Processing with handlers:
//!
//! - [`Node`] runs handlers; [`RunningNode`] is a started node.
//! - [`Handler`] processes the events of one type. It receives an [`Envelope`] and a [`Context`] and returns
//!   [`Handled`]: success, or a [`HandlerError`] that says whether the event is retried, snoozed or dead-lettered.
//!
//! Processing without a node:
//!
//! - [`ClaimRequest`] leases deliveries to a worker. Each [`Delivery`] has a [`Lease`], which [`Queue::extend`] renews.
//! - [`Report`] ends an attempt with an [`Outcome`]; [`Finished`] is the result.
//!
//! Configuration:
//!
//! - [`Policy`] defines leases, retries, backoff, deadlines and retention of a [`Namespace`]. [`PolicyOverrides`]
//!   changes it for a type or a subscription.
//! - [`SubscriptionSpec`] adds a [`Subscription`], which gets its own delivery of each matching event (fan-out).
//! - [`NewSchedule`] publishes an event at the times of a cron rule.
//! - [`Limits`] bounds the sizes and counts that a queue accepts.
//!
//! Monitoring and administration:
//!
//! - [`EventView`], [`LogEntry`], [`DeadLetter`] and [`NodeView`] describe events, attempts, dead letters and nodes.
//!   [`Status`] is the state of a delivery. [`Sample`] has the counts of one minute.
//! - [`Queue::redrive`] puts dead letters back into the queue, and [`Queue::cancel`] cancels pending deliveries.
//! - [`Queue::diagnose`] checks an installation. Each [`Finding`] has the result of one check and, if it found a
//!   problem, how to fix it.
//!
//! Errors: [`Error::code`] is stable across versions, and [`Error::is_temporary`] tells whether a retry may succeed.
//!
//! # Features
//!
//! - `sqlite` and `postgres`: the databases. Both are enabled by default; at least one is required.
//! - `testing`: the `testing` module, for tests of code that publishes and handles events.
//! - `metrics`: counters and histograms for the `metrics` facade.
//! - `otel`: OpenTelemetry spans for publishing, claiming and handling events, as one trace across processes.
//! - `openapi`: OpenAPI schemas of the types in API responses.

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("windlass needs at least one of its features `sqlite` and `postgres`");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod admin;
mod claim;
mod clock;
mod error;
mod event;
mod maintenance;
mod node;
mod observe;
mod policy;
mod queue;
mod schedule;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod topology;

pub use admin::scopes::Scope;
pub use admin::subscriptions::SubscriptionSpec;
pub use admin::tokens::{CreatedToken, NewToken, Token};
pub use claim::{ClaimRequest, WAIT_MAX};
pub use clock::{Clock, TestClock, Timestamp};
pub use error::{Error, Result};
pub use event::delivery::{Delivery, Lease, Status};
pub use event::names::NAME_BYTES_MAX;
pub use event::typed::EventType;
pub use event::{Event, NewEvent};
pub use maintenance::history::{ExportedHistory, HistoryFilter, ImportedHistory};
pub use maintenance::partitions::Partitions;
pub use maintenance::retain::RetentionReport;
pub use maintenance::task::{MaintenanceRun, MaintenanceTask, MaintenanceTaskView};
#[cfg(feature = "postgres")]
pub use node::PgTx;
#[cfg(feature = "sqlite")]
pub use node::SqliteTx;
pub use node::registry::{HEARTBEAT, NewNode, NodeStatus, NodeView};
pub use node::{Context, Envelope, Handled, Handler, HandlerError, Node, RunningNode, shutdown_signal};
pub use observe::activity::{Activity, ActivityCursor, ActivityPage};
pub use observe::backlog::{Backlog, PROCESSING_AGES};
pub use observe::consumers::ConsumerView;
pub use observe::diagnose::{Finding, FindingLevel};
pub use observe::explain::{Explanation, WaitReason};
pub use observe::inspect::{
    DeadLetter, DeadLetterFilter, DeadLetterGroup, DeliveryView, EventView, ListFilter, LogEntry, Page, StatRow,
    StuckDelivery, WorkerView,
};
pub use observe::metrics::DeadReason;
pub use observe::overview::{DeadLetterCount, MaintenanceOverview, NamespaceOverview, Overview, QueueOverview};
pub use observe::pools::PoolView;
pub use observe::samples::{Quantiles, Sample, SampleFilter};
pub use observe::search::{SearchFilter, SearchPage, SearchResult};
pub use policy::backoff::Backoff;
pub use policy::limits::Limits;
pub use policy::{
    ExhaustedPolicy, GroupFailurePolicy, HandlerResultStorage, History, NamespacePolicy, PRESETS, Policy,
    PolicyOverrides, UnhandledPolicy, UnrecoverablePolicy,
};
pub use queue::cancel::CancelFilter;
pub use queue::finish::LeasedEvent;
pub use queue::outcome::{Action, Attempt, Finished, HandlerResult, Outcome, Report};
pub use queue::publish::Published;
pub use queue::publish_in::PublishIn;
pub use queue::{OpenOptions, Queue, SchemaVersion, schema_version};
pub use schedule::{
    FireReport, MissedPolicy, NewSchedule, PREVIEW_MAX, ScheduleFilter, ScheduleFire, ScheduleRunner, ScheduleView,
};
pub use topology::{DEFAULT_NAMESPACE, MAIN, Namespace, Subscription};

/// The SQLite driver, in the version whose transactions [`Queue::publish_in`] accepts.
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// The PostgreSQL driver, in the version whose transactions [`Queue::publish_in`] accepts.
#[cfg(feature = "postgres")]
pub use sqlx;
