//! A durable, at-least-once event queue and bus that lives in your own relational database: SQLite,
//! embedded, or PostgreSQL.
//!
//! [`Queue`] is the way in: publish a [`NewEvent`], claim a [`Delivery`], finish it with a [`Report`].

#[cfg(not(any(feature = "sqlite", feature = "postgres")))]
compile_error!("windlass needs at least one of its features `sqlite` and `postgres`");

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod activity;
mod busy;
mod cancel;
mod change;
mod claim;
mod clock;
mod coalesce;
mod decide;
mod delivery;
mod error;
mod event;
mod finish;
mod hold;
mod inspect;
mod limits;
mod maintain;
mod names;
mod namespace;
mod node;
mod outcome;
mod policy;
mod publish;
mod publish_in;
mod queue;
mod redrive;
mod register;
mod reset;
mod results;
mod retry;
mod scope;
mod store;
mod subscription;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
mod topology;
mod typed;
mod wake;

pub use activity::{Activity, ActivityCursor, ActivityPage};
pub use claim::{ClaimRequest, WAIT_MAX};
pub use clock::{Clock, ClockHand, Timestamp};
pub use delivery::{Delivery, Lease, Status};
pub use error::{Error, Result};
pub use event::{Event, NewEvent};
pub use finish::Held;
pub use inspect::{
    DeadLetter, DeadLetterFilter, DeliveryView, EventView, ListFilter, LogEntry, Page, StatRow, StuckDelivery,
    WorkerView,
};
pub use limits::Limits;
pub use names::NAME_BYTES_MAX;
#[cfg(feature = "postgres")]
pub use node::PgTx;
pub use node::{Context, Envelope, Handled, Handler, HandlerError, Node, RunningNode, shutdown_signal};
pub use outcome::{Action, Attempt, Finished, HandlerResult, Outcome, Report};
pub use policy::{Exhausted, GroupFailure, History, NamespacePolicy, PRESETS, Policy, PolicyOverrides, Unhandled};
pub use publish::Published;
pub use publish_in::PublishIn;
pub use queue::{OpenOptions, Queue, SchemaVersion, schema_version};
pub use register::{HEARTBEAT, NewNode, NodeStatus, NodeView};
pub use retry::Backoff;
pub use scope::Scope;
pub use subscription::SubscriptionSpec;
pub use token::{CreatedToken, NewToken, Token};
pub use topology::{DEFAULT_NAMESPACE, MAIN, Namespace, Subscription};
pub use typed::EventType;

/// The driver of SQLite, in the version that [`Queue::publish_in`] takes transactions of.
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// The driver of PostgreSQL, in the version that [`Queue::publish_in`] takes transactions of.
#[cfg(feature = "postgres")]
pub use sqlx;
