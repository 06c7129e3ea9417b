//! Handlers in a transaction: what they write and the completion of their delivery are committed together.

use std::sync::Arc;
use std::time::Instant;

use super::attempt::AttemptEnd;
use super::context::Context;
use super::envelope::Envelope;
use super::error::Failure;
use super::handler::{Handler, Work};
use super::shared::Shared;
use super::verdict::Run;
use crate::error::Error;
use crate::queue::Queue;
use crate::queue::change;
use crate::queue::finish::change_of;
use crate::queue::handler_results::InterimResult;
use crate::queue::outcome::{HandlerResult, Report};
use crate::store::{AppliedChanges, AttemptInTx, DeliveryChange, TxCompletion, TxOutcome};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "postgres")]
pub use postgres::PgTx;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteTx;

/// The database is unreachable, locked or full. No handler failed.
pub(super) struct Unavailable;

/// Why a transaction was rolled back.
enum TxFailure {
    Handler(Run),
    Database(Error),
}

/// Refuses a handler that wants a transaction of another database.
pub(super) fn check(queue: &Queue, handler: &Handler) -> Result<(), Error> {
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
/// also completes the delivery, unless a handler failed. `None`: the results were added to `runs` and have to be reported.
pub(super) async fn run_all(
    node: &Shared,
    cx: &Context,
    handlers: &[Arc<Handler>],
    runs: &mut Vec<Run>,
    known: &[HandlerResult],
    begun: Instant,
    share: bool,
) -> Result<Option<AttemptEnd>, Unavailable> {
    if share && !is_clean(runs, known) {
        return Ok(None);
    }
    let event = cx.event();
    let parts: Vec<&[Arc<Handler>]> = if share { vec![handlers] } else { handlers.chunks(1).collect() };
    let last = parts.len() - 1;
    for (at, part) in parts.into_iter().enumerate() {
        let ends = at == last && is_clean(runs, known);
        let closing = closing(node, event, part, ends.then_some(&*runs), begun).await.map_err(|_| Unavailable)?;
        let done = || part.iter().map(|handler| done(handler)).collect::<Vec<Run>>();
        match transact(node, cx, part, closing).await {
            Ok(TxOutcome::Changed(change, applied)) => {
                node.count_handled(event, &done());
                after_commit(node, *change, applied);
                return Ok(Some(AttemptEnd::Committed));
            }
            Ok(TxOutcome::Noted) => {
                node.count_handled(event, &done());
                runs.extend(done());
            }
            Ok(TxOutcome::Lost) => {
                node.queue.core().metrics.lost(node.queue.namespace(), 1);
                return Ok(Some(AttemptEnd::Lost));
            }
            Err(failure) => {
                let run = failure.into_run(part)?;
                node.count_handled(event, std::slice::from_ref(&run));
                runs.push(run);
            }
        }
    }
    Ok(None)
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
) -> Result<TxCompletion, Error> {
    match (ends_after, part) {
        (None, [handler, ..]) => {
            let result = HandlerResult { handler: handler.id.clone(), succeeded: true, error: None };
            Ok(TxCompletion::Note(InterimResult { live: event.0.live(), result }))
        }
        (runs, _) => {
            let done = |run: &Run| HandlerResult { handler: run.handler.clone(), succeeded: true, error: None };
            // Named so that their stored results are deleted.
            let noted = runs.into_iter().flatten().map(done).collect();
            let report = Report::done().handler_results(noted);
            let change = change_of(node.queue.core(), &event.0, &report).await?;
            Ok(TxCompletion::End(AttemptInTx { change, begun }.into()))
        }
    }
}

async fn transact(
    node: &Shared,
    cx: &Context,
    handlers: &[Arc<Handler>],
    closing: TxCompletion,
) -> Result<TxOutcome, TxFailure> {
    match handlers.first().map(|handler| &handler.work) {
        #[cfg(feature = "postgres")]
        Some(Work::InPgTx(_)) => postgres::transact(node, cx, handlers, closing).await,
        #[cfg(feature = "sqlite")]
        Some(Work::InSqliteTx(_)) => sqlite::transact(node, cx, handlers, closing).await,
        _ => Ok(TxOutcome::Noted),
    }
}

fn after_commit(node: &Shared, change: DeliveryChange, applied: AppliedChanges) {
    if let Some(group_id) = change.live.group_id.clone() {
        // On PostgreSQL, the transaction has not changed its group.
        let (queue, subscription) = (node.queue.clone(), change.live.subscription.clone());
        tokio::spawn(async move {
            if let Err(error) = queue.lines().departures.call((subscription, group_id), 1).await {
                tracing::debug!(%error, "a group waits until a router lets it go on");
            }
        });
    }
    change::after_commit(node.queue.core(), node.queue.namespace(), &[change], &applied);
}

impl TxFailure {
    /// The failure as the result of a handler. An error of the database counts for the handler that ran last, unless the
    /// database was unavailable.
    fn into_run(self, handlers: &[Arc<Handler>]) -> Result<Run, Unavailable> {
        let error = match self {
            TxFailure::Handler(run) => return Ok(run),
            TxFailure::Database(error) => error,
        };
        if error.is_temporary() || matches!(error, Error::Closed) {
            tracing::warn!(%error, "the database failed a handler's transaction");
            return Err(Unavailable);
        }
        let handler = handlers.last().map(|handler| handler.id.clone()).unwrap_or_default();
        let failure = Failure::Retry { after: None, error: error.to_string() };
        Ok(Run { handler, failure: Some(failure) })
    }
}
