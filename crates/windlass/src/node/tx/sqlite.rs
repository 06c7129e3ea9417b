//! Handlers in an SQLite transaction. They run on the writer thread.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use serde::Serialize;

use super::super::context::Context;
use super::super::error::Failure;
use super::super::handler::{Handler, Work};
use super::super::report::HandlerRun;
use super::super::state::NodeState;
use super::{TxCompletion, TxFailure, TxOutcome};
use crate::error::{Error, Result};
use crate::event::NewEvent;
use crate::queue::publish::Published;
use crate::queue::wake::lock;

/// The transaction that a handler runs in. It dereferences to [`Connection`]: `tx.execute(…)`.
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

    /// Publishes an event of this type and payload in the transaction. Returns its id.
    pub fn emit<T: Serialize + ?Sized>(&self, event_type: &str, payload: &T) -> Result<i64> {
        Ok(self.publish(NewEvent::new(event_type).payload(payload)?)?.event.id)
    }
}

pub(super) async fn transact(
    node: &NodeState,
    cx: &Context,
    handlers: &[Arc<Handler>],
    completion: TxCompletion,
) -> Result<TxOutcome, TxFailure> {
    let core = node.queue.core();
    let store = core.store.sqlite().ok_or(TxFailure::Database(Error::Closed))?;
    // An error rolls the write back. The failure of the handler is passed through this variable.
    let failure = Arc::new(Mutex::new(None));
    let (failure_out, handlers, cx) = (failure.clone(), handlers.to_vec(), cx.clone());
    // The handlers run on the writer thread.
    let span = tracing::Span::current();
    let work = move |conn: &Connection| span.in_scope(|| run_all(&handlers, &cx, conn, &failure_out));
    let outcome = store.handle(node.queue.namespace(), completion, core.clock.overridden(), work).await;
    match lock(&failure).take() {
        Some(run) => Err(TxFailure::Handler(run)),
        None => outcome.map_err(TxFailure::Database),
    }
}

fn run_all(
    handlers: &[Arc<Handler>],
    cx: &Context,
    conn: &Connection,
    failure_out: &Mutex<Option<HandlerRun>>,
) -> Result<()> {
    *lock(failure_out) = None;
    for handler in handlers {
        if let Some(failure) = run(handler, cx, conn) {
            *lock(failure_out) = Some(HandlerRun { handler: handler.id.clone(), failure: Some(failure) });
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
