//! Transactional handlers: their writes and the completion of the delivery are committed together.
//!
//! This module decides which handlers share a transaction. `postgres` and `sqlite` run the transaction.

use std::sync::Arc;
use std::time::Instant;

use super::attempt::AttemptEnd;
use super::context::Context;
use super::envelope::Envelope;
use super::error::Failure;
use super::handler::{Handler, Work};
use super::report::HandlerRun;
use super::state::NodeState;
use crate::error::Error;
use crate::queue::Queue;
use crate::queue::change;
use crate::queue::finish::change_for_report;
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
pub(super) struct DatabaseUnavailable;

/// Why a transaction was rolled back.
enum TxFailure {
    Handler(HandlerRun),
    Database(Error),
}

/// Rejects a handler whose kind of transaction the queue's database does not have.
pub(super) fn check(queue: &Queue, handler: &Handler) -> Result<(), Error> {
    let store = &queue.core().store;
    let is_supported = match &handler.work {
        Work::Plain(_) => true,
        #[cfg(feature = "postgres")]
        Work::InPgTx(_) => store.postgres().is_some(),
        #[cfg(feature = "sqlite")]
        Work::InSqliteTx(_) => store.sqlite().is_some(),
    };
    if is_supported {
        return Ok(());
    }
    let problem = format!("'{}' wants a transaction of another database than the queue's", handler.id);
    Err(Error::invalid("handler", problem))
}

/// Runs handlers one after another: each in its own transaction, or all in one with `share`. The last transaction also
/// completes the delivery, unless a handler failed. `None`: the results were added to `runs` and have to be reported.
pub(super) async fn run_all(
    node: &NodeState,
    cx: &Context,
    handlers: &[Arc<Handler>],
    runs: &mut Vec<HandlerRun>,
    earlier: &[HandlerResult],
    started: Instant,
    share: bool,
) -> Result<Option<AttemptEnd>, DatabaseUnavailable> {
    if share && !all_succeeded(runs, earlier) {
        return Ok(None);
    }
    let event = cx.event();
    let batches: Vec<&[Arc<Handler>]> = if share { vec![handlers] } else { handlers.chunks(1).collect() };
    let last = batches.len() - 1;
    for (index, batch) in batches.into_iter().enumerate() {
        let completes = index == last && all_succeeded(runs, earlier);
        let completion = completion(node, event, batch, completes.then_some(&*runs), started).await;
        let completion = completion.map_err(|_| DatabaseUnavailable)?;
        let succeeded = || batch.iter().map(|handler| succeeded(handler)).collect::<Vec<HandlerRun>>();
        match transact(node, cx, batch, completion).await {
            Ok(TxOutcome::Changed(change, applied)) => {
                node.count_handled(event, &succeeded());
                after_commit(node, *change, applied);
                return Ok(Some(AttemptEnd::Committed));
            }
            Ok(TxOutcome::Noted) => {
                node.count_handled(event, &succeeded());
                runs.extend(succeeded());
            }
            Ok(TxOutcome::Lost) => {
                node.queue.core().metrics.lost(node.queue.namespace(), 1);
                return Ok(Some(AttemptEnd::Lost));
            }
            Err(failure) => {
                let run = failure.into_run(batch)?;
                node.count_handled(event, std::slice::from_ref(&run));
                runs.push(run);
            }
        }
    }
    Ok(None)
}

fn all_succeeded(runs: &[HandlerRun], earlier: &[HandlerResult]) -> bool {
    runs.iter().all(|run| run.failure.is_none()) && earlier.iter().all(|result| result.succeeded)
}

fn succeeded(handler: &Handler) -> HandlerRun {
    HandlerRun { handler: handler.id.clone(), failure: None }
}

/// The record committed together with the writes of the handlers: the completion of the delivery after `runs_before`,
/// or the result of one handler.
async fn completion(
    node: &NodeState,
    event: &Envelope,
    batch: &[Arc<Handler>],
    runs_before: Option<&Vec<HandlerRun>>,
    started: Instant,
) -> Result<TxCompletion, Error> {
    match (runs_before, batch) {
        (None, [handler, ..]) => {
            let result = HandlerResult { handler: handler.id.clone(), succeeded: true, error: None };
            Ok(TxCompletion::Note(InterimResult { live: event.0.live(), result }))
        }
        (runs, _) => {
            let succeeded =
                |run: &HandlerRun| HandlerResult { handler: run.handler.clone(), succeeded: true, error: None };
            // The report names them so that their stored results are deleted.
            let earlier_results = runs.into_iter().flatten().map(succeeded).collect();
            let report = Report::done().handler_results(earlier_results);
            let change = change_for_report(node.queue.core(), &event.0, &report).await?;
            Ok(TxCompletion::End(AttemptInTx { change, begun: started }.into()))
        }
    }
}

async fn transact(
    node: &NodeState,
    cx: &Context,
    handlers: &[Arc<Handler>],
    completion: TxCompletion,
) -> Result<TxOutcome, TxFailure> {
    match handlers.first().map(|handler| &handler.work) {
        #[cfg(feature = "postgres")]
        Some(Work::InPgTx(_)) => postgres::transact(node, cx, handlers, completion).await,
        #[cfg(feature = "sqlite")]
        Some(Work::InSqliteTx(_)) => sqlite::transact(node, cx, handlers, completion).await,
        _ => Ok(TxOutcome::Noted),
    }
}

fn after_commit(node: &NodeState, change: DeliveryChange, applied: AppliedChanges) {
    if let Some(group_id) = change.live.group_id.clone() {
        // On PostgreSQL, the handler's transaction does not advance the group.
        let (queue, subscription) = (node.queue.clone(), change.live.subscription.clone());
        tokio::spawn(async move {
            if let Err(error) = queue.coalescers().departures.call((subscription, group_id), 1).await {
                tracing::debug!(%error, "could not advance the group; a router will");
            }
        });
    }
    change::after_commit(node.queue.core(), node.queue.namespace(), &[change], &applied);
}

impl TxFailure {
    /// The failure as the result of a handler. A database error counts as a failure of the last handler, unless the
    /// database was unavailable.
    fn into_run(self, handlers: &[Arc<Handler>]) -> Result<HandlerRun, DatabaseUnavailable> {
        let error = match self {
            TxFailure::Handler(run) => return Ok(run),
            TxFailure::Database(error) => error,
        };
        if error.is_temporary() || matches!(error, Error::Closed) {
            tracing::warn!(%error, "the transaction of a handler failed because the database is unavailable");
            return Err(DatabaseUnavailable);
        }
        let handler = handlers.last().map(|handler| handler.id.clone()).unwrap_or_default();
        let failure = Failure::Retry { after: None, error: error.to_string() };
        Ok(HandlerRun { handler, failure: Some(failure) })
    }
}
