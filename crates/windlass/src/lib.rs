//! A durable, at-least-once event queue and bus that lives in your own relational database: SQLite,
//! embedded, or PostgreSQL.
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
//! The guide, `docs/rust.md`, explains all of it in order; `crates/windlass/examples` has whole programs.
//!
//! # The main types
//!
//! - [`Queue`] is the way in: it publishes, claims, finishes, inspects and sets policies, in one namespace.
//! - [`NewEvent`] is what is published, and [`Event`] what is stored. An [`EventType`] is a payload with a Rust type of
//!   its own. [`Queue::publish_in`] publishes in a transaction of yours.
//! - [`Node`] runs handlers, and [`RunningNode`] is one at work. A [`Handler`] gets an [`Envelope`] and a [`Context`],
//!   and returns [`Handled`]: done, or a [`HandlerError`] that says what shall follow. Handlers can work in a transaction
//!   that is committed with the completion: [`Handler::in_pg_tx`], [`Handler::in_sqlite_tx`].
//! - [`Policy`] says what becomes of an event, from its claim to its end; [`SubscriptionSpec`] who else must be told.
//! - Without a node: a [`ClaimRequest`] takes a [`Delivery`], and a [`Report`] ends it.
//! - [`EventView`], [`LogEntry`], [`DeadLetter`] and [`NodeView`] show what is there and what happened, and [`Sample`]
//!   how much of it in each minute. [`Queue::diagnose`] says what is wrong with an installation, and what to do.
//! - [`Error`] has a stable [`Error::code`], and [`Error::is_temporary`] says whether trying again may help.
//!
//! # Features
//!
//! - `sqlite` and `postgres`, both on unless switched off: the databases. At least one is needed.
//! - `testing`: the module `testing`, for tests of code that publishes and handles events.
//! - `metrics`: what happens is told to the recorder of the `metrics` facade, as counters and histograms.
//! - `otel`: spans for publishing, taking and handling events, which are one trace across processes.
//! - `openapi`: schemas for OpenAPI documents of the types that answers are made of.

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("windlass needs at least one of its features `sqlite` and `postgres`");

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Guide;

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

/// The driver of SQLite, in the version that [`Queue::publish_in`] takes transactions of.
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// The driver of PostgreSQL, in the version that [`Queue::publish_in`] takes transactions of.
#[cfg(feature = "postgres")]
pub use sqlx;
