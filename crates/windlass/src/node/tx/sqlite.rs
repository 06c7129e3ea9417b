//! Handlers in an SQLite transaction, on the thread that writes.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use serde::Serialize;

use super::super::context::Context;
use super::super::error::Failure;
use super::super::handler::{Handler, Work};
use super::super::shared::Shared;
use super::super::verdict::Run;
use super::{TxCompletion, TxFailure, TxOutcome};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::queue::publish::Published;
use crate::queue::wake::lock;

/// The transaction that a handler runs in. Use it as the [`Connection`] that it is: `tx.execute(…)`.
pub struct SqliteTx<'a> {
    connection: &'a Connection,
    context: &'a Context,
}

impl Deref for SqliteTx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl SqliteTx<'_> {
    /// The event, the node and its queue.
    pub fn context(&self) -> &Context {
        self.context
    }

    /// Publishes an event in the transaction, with this node as its producer: see
    /// [`Queue::publish_in`](crate::Queue::publish_in).
    pub fn publish(&self, event: NewEvent) -> Result<Published> {
        let (queue, event) = self.context.producer.stamp(event);
        queue.publish_in(self.connection, event)
    }

    /// Publishes an event of this type and payload in the transaction; its id.
    pub fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        Ok(self.publish(NewEvent::new(event_type).payload(payload)?)?.event.id)
    }
}

pub(super) async fn transact(
    node: &Shared,
    cx: &Context,
    handlers: &[Arc<Handler>],
    closing: TxCompletion,
) -> Result<TxOutcome, TxFailure> {
    let core = node.queue.core();
    let store = core.store.sqlite().ok_or(TxFailure::Database(Error::Closed))?;
    // An error is how a write is rolled back; what it was is told here.
    let failure = Arc::new(Mutex::new(None));
    let (told, ours, cx) = (failure.clone(), handlers.to_vec(), cx.clone());
    // The handlers run on another thread.
    let span = tracing::Span::current();
    let work = move |conn: &Connection| span.in_scope(|| run_all(&ours, &cx, conn, &told));
    let closed = store.handle(node.queue.namespace(), closing, core.clock.overridden(), work).await;
    match lock(&failure).take() {
        Some(run) => Err(TxFailure::Handler(run)),
        None => closed.map_err(TxFailure::Database),
    }
}

fn run_all(handlers: &[Arc<Handler>], cx: &Context, conn: &Connection, told: &Mutex<Option<Run>>) -> Result<()> {
    *lock(told) = None;
    for handler in handlers {
        if let Some(failure) = run(handler, cx, conn) {
            *lock(told) = Some(Run { handler: handler.id.clone(), failure: Some(failure) });
            return Err(Error::Database { detail: "a handler failed".to_owned() });
        }
    }
    Ok(())
}

fn run(handler: &Handler, cx: &Context, conn: &Connection) -> Option<Failure> {
    let Work::InSqliteTx(work) = &handler.work else { return None };
    let tx = SqliteTx { connection: conn, context: cx };
    match catch_unwind(AssertUnwindSafe(|| work(cx.event(), &tx))) {
        Ok(handled) => handled.err().map(|error| error.0),
        Err(panic) => Some(Failure::panicked(&*panic)),
    }
}
