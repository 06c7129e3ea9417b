//! Handlers in a transaction: what they write and the end of their event commit together.

use std::sync::Arc;
use std::time::Instant;

use super::envelope::Envelope;
use super::error::Failure;
use super::handler::{Handler, Work};
use super::shared::Shared;
use super::verdict::Run;
use crate::error::{Error, Result};
use crate::finish::change_of;
use crate::outcome::{Attempt, HandlerResult, Report};
use crate::queue::Queue;
use crate::results::InterimResult;
use crate::store::{Closed, Closing};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "postgres")]
pub use postgres::PgTx;

/// What became of handlers in transactions.
pub(super) enum Ended {
    /// Their runs were added to the others'.
    Reported,
    /// The event's end is committed.
    Committed(Attempt),
    /// The event is no longer ours: what they wrote was rolled back.
    Lost,
    /// The database is away, or locked, or full. That is nobody's failure.
    Unavailable,
}

/// How one transaction ended.
pub(super) enum TxEnd {
    /// It is committed, with the event's end if that was in it.
    Committed(Option<Attempt>),
    /// One of the handlers, or the commit, failed: it is rolled back.
    Failed(Run),
    Lost,
    Unavailable,
}

/// Refuses a handler that wants a transaction of another database.
pub(super) fn check(queue: &Queue, handler: &Handler) -> Result<()> {
    let store = &queue.core().store;
    let fits = match &handler.work {
        Work::Plain(_) => true,
        #[cfg(feature = "postgres")]
        Work::InPgTx(_) => store.postgres().is_some(),
        #[cfg(feature = "sqlite")]
        Work::InSqliteTx(_) => store.sqlite().is_some(),
    };
    if fits {
        return Ok(());
    }
    let problem = format!("'{}' wants a transaction of another database than the queue's", handler.id);
    Err(Error::invalid("handler", problem))
}

/// Runs handlers one after another: each in a transaction of its own, or all in one with `share`. The last transaction
/// also records the end of the delivery, unless a handler failed.
pub(super) async fn run_all(
    node: &Shared,
    event: &Envelope,
    handlers: &[Arc<Handler>],
    runs: &mut Vec<Run>,
    known: &[HandlerResult],
    begun: Instant,
    share: bool,
) -> Ended {
    if share && !is_clean(runs, known) {
        return Ended::Reported;
    }
    let parts: Vec<&[Arc<Handler>]> = if share { vec![handlers] } else { handlers.chunks(1).collect() };
    let last = parts.len() - 1;
    for (at, part) in parts.into_iter().enumerate() {
        let ends = at == last && is_clean(runs, known);
        let closing = match closing(node, event, part, ends.then_some(&*runs), begun).await {
            Ok(closing) => closing,
            Err(_) => return Ended::Unavailable,
        };
        match transact(node, event, part, closing).await {
            TxEnd::Committed(attempt) => {
                let done: Vec<Run> = part.iter().map(|handler| done(handler)).collect();
                node.count_handled(event, &done);
                match attempt {
                    Some(attempt) => return Ended::Committed(attempt),
                    None => runs.extend(done),
                }
            }
            TxEnd::Failed(run) => {
                node.count_handled(event, std::slice::from_ref(&run));
                runs.push(run);
            }
            TxEnd::Lost => {
                node.queue.core().meter.lost(node.queue.namespace(), 1);
                return Ended::Lost;
            }
            TxEnd::Unavailable => return Ended::Unavailable,
        }
    }
    Ended::Reported
}

fn is_clean(runs: &[Run], known: &[HandlerResult]) -> bool {
    runs.iter().all(|run| run.failure.is_none()) && known.iter().all(|known| known.succeeded)
}

fn done(handler: &Handler) -> Run {
    Run { handler: handler.id.clone(), failure: None }
}

/// What is committed with what the handlers wrote: the event's end after these `runs`, or that one handler is done.
async fn closing(
    node: &Shared,
    event: &Envelope,
    part: &[Arc<Handler>],
    ends_after: Option<&Vec<Run>>,
    begun: Instant,
) -> Result<Closing> {
    match (ends_after, part) {
        (None, [handler, ..]) => {
            let result = HandlerResult { handler: handler.id.clone(), succeeded: true, error: None };
            Ok(Closing::Note(InterimResult { live: event.0.live(), result }))
        }
        (runs, _) => {
            let done = |run: &Run| HandlerResult { handler: run.handler.clone(), succeeded: true, error: None };
            // Named so that what was noted of them is cleared away.
            let noted = runs.into_iter().flatten().map(done).collect();
            let report = Report::done().handler_results(noted);
            Ok(Closing::End(change_of(node.queue.core(), &event.0, &report).await?, begun))
        }
    }
}

async fn transact(node: &Shared, event: &Envelope, handlers: &[Arc<Handler>], closing: Closing) -> TxEnd {
    match handlers.first().map(|handler| &handler.work) {
        #[cfg(feature = "postgres")]
        Some(Work::InPgTx(_)) => postgres::transact(node, event, handlers, closing).await,
        #[cfg(feature = "sqlite")]
        Some(Work::InSqliteTx(_)) => sqlite::transact(node, event, handlers, closing).await,
        _ => TxEnd::Committed(None),
    }
}

/// What became of a transaction, told to whoever may now have something to take.
fn ended(node: &Shared, event: &Envelope, handlers: &[Arc<Handler>], closed: Result<Closed>) -> TxEnd {
    match closed {
        Ok(Closed::Ended(attempt, freed)) => {
            node.queue.core().count_completed(&event.0, &attempt);
            node.queue.core().wakes.notify(node.queue.namespace(), freed);
            TxEnd::Committed(Some(attempt))
        }
        Ok(Closed::Noted) => TxEnd::Committed(None),
        Ok(Closed::Lost) => TxEnd::Lost,
        Err(error) => failed(handlers, &error),
    }
}

/// Says what a failure of the database means: to the handler that ran last, or to nobody.
fn failed(handlers: &[Arc<Handler>], error: &Error) -> TxEnd {
    if error.is_temporary() || matches!(error, Error::Closed) {
        tracing::warn!(%error, "the database failed a handler's transaction");
        return TxEnd::Unavailable;
    }
    let handler = handlers.last().map(|handler| handler.id.clone()).unwrap_or_default();
    let failure = Failure::Retry { after: None, error: error.to_string() };
    TxEnd::Failed(Run { handler, failure: Some(failure) })
}
