//! Handlers in an SQLite transaction, on the thread that writes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use rusqlite::Connection;

use super::super::envelope::Envelope;
use super::super::error::Failure;
use super::super::handler::{Handler, Work};
use super::super::shared::Shared;
use super::super::verdict::Run;
use super::{Closed, Closing, TxFailure};
use crate::error::{Error, Result};
use crate::wake::lock;

pub(super) async fn transact(
    node: &Shared,
    event: &Envelope,
    handlers: &[Arc<Handler>],
    closing: Closing,
) -> Result<Closed, TxFailure> {
    let core = node.queue.core();
    let store = core.store.sqlite().ok_or(TxFailure::Database(Error::Closed))?;
    // An error is how a write is rolled back; what it was is told here.
    let failure = Arc::new(Mutex::new(None));
    let (told, ours, shown) = (failure.clone(), handlers.to_vec(), event.clone());
    // The handlers run on another thread.
    let span = tracing::Span::current();
    let work = move |conn: &Connection| span.in_scope(|| run_all(&ours, &shown, conn, &told));
    let closed = store.handle(node.queue.namespace(), closing, core.clock.overridden(), work).await;
    match lock(&failure).take() {
        Some(run) => Err(TxFailure::Handler(run)),
        None => closed.map_err(TxFailure::Database),
    }
}

fn run_all(handlers: &[Arc<Handler>], event: &Envelope, conn: &Connection, told: &Mutex<Option<Run>>) -> Result<()> {
    *lock(told) = None;
    for handler in handlers {
        if let Some(failure) = run(handler, event, conn) {
            *lock(told) = Some(Run { handler: handler.id.clone(), failure: Some(failure) });
            return Err(Error::Database { detail: "a handler failed".to_owned() });
        }
    }
    Ok(())
}

fn run(handler: &Handler, event: &Envelope, conn: &Connection) -> Option<Failure> {
    let Work::InSqliteTx(work) = &handler.work else { return None };
    match catch_unwind(AssertUnwindSafe(|| work(event, conn))) {
        Ok(handled) => handled.err().map(|error| error.0),
        Err(panic) => Some(Failure::panicked(&*panic)),
    }
}
