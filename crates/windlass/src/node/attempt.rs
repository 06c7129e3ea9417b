//! One attempt at a delivery, from the claim to the reported outcome.
//!
//! Start at [`process_delivery`].

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::Instrument;

use super::backoff::RetryBackoff;
use super::context::Context;
use super::envelope::Envelope;
use super::error::{Failure, Handled};
use super::handler::{Handler, HandlerFuture, Work};
use super::leases::LeasedDelivery;
use super::pool::InProgressGuard;
use super::report::{HandlerRun, attempt_report, snooze_report};
use super::result_storage::ResultStorage;
use super::state::NodeState;
use super::tx;
use crate::clock::millis_since;
use crate::error::Error;
use crate::observe::trace;
use crate::policy::HandlerResultStorage;
use crate::queue::outcome::{Finished, HandlerResult, Outcome, Report};

/// A delivery that gets no slot within this time is released, because other nodes may have free slots.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(1);
/// An attempt during which the database became unavailable does not count as a failure. After this many attempts it
/// does, because the event itself may be the cause.
const UNAVAILABLE_ATTEMPTS_MAX: u32 = 10;

/// Logs a line with the fields of a delivery.
macro_rules! log_delivery {
    ($level:ident, $event:expr, $($rest:tt)+) => {
        tracing::$level!(
            namespace = $event.namespace,
            event_id = $event.id,
            "type" = $event.event_type,
            subscription = $event.subscription(),
            worker_id = $event.0.worker_id,
            attempt = $event.attempt(),
            $($rest)+
        )
    };
}

/// How an attempt ended.
pub(super) enum AttemptEnd {
    /// The outcome has to be reported.
    Report(Report),
    /// The handlers' transaction completed the delivery.
    Committed,
    /// The lease is lost. Transactions of handlers were rolled back.
    Lost,
}

/// Runs the handlers of a delivery and reports the outcome. `earlier` are the handler results of earlier attempts. If
/// they could not be loaded (`None`), the delivery is released.
pub(super) async fn process_delivery(guard: InProgressGuard, event: Envelope, earlier: Option<Vec<HandlerResult>>) {
    let node = guard.node().clone();
    let leased = LeasedDelivery::new(event.0.clone());
    let _renewal = node.leases.start_renewing(&leased);
    match run_attempt(&guard, &event, &leased, earlier.as_deref()).await {
        AttemptEnd::Report(report) if !leased.is_lost() => report_outcome(&node, &event, report).await,
        AttemptEnd::Committed => {}
        AttemptEnd::Report(_) | AttemptEnd::Lost => log_lost_lease(&event),
    }
}

/// Runs the handlers of a delivery; releases it if the node gives up on its handlers.
pub(super) async fn run_attempt(
    guard: &InProgressGuard,
    event: &Envelope,
    leased: &Arc<LeasedDelivery>,
    earlier: Option<&[HandlerResult]>,
) -> AttemptEnd {
    let span = trace::handler_span(&event.0);
    let end = tokio::select! {
        // Biased: a handler that never waits finishes without a poll of the other branch.
        biased;
        end = execute_attempt(guard, event, leased, earlier).instrument(span.clone()) => end,
        () = guard.node().wait_until_abandoned() => released(),
    };
    if let AttemptEnd::Report(report) = &end {
        trace::record_outcome(&span, report);
    }
    end
}

fn released() -> AttemptEnd {
    AttemptEnd::Report(Report::new(Outcome::Release))
}

async fn execute_attempt(
    guard: &InProgressGuard,
    event: &Envelope,
    leased: &Arc<LeasedDelivery>,
    earlier: Option<&[HandlerResult]>,
) -> AttemptEnd {
    let (node, Some(earlier)) = (guard.node(), earlier) else { return released() };
    let slots = tokio::select! {
        biased;
        slots = guard.acquire_slots() => slots,
        () = node.wait_until_stopping() => None,
        () = tokio::time::sleep(SLOT_WAIT_MAX) => None,
    };
    // A delivery past its deadline is not started. Nothing claims it any more, and maintenance expires it.
    let Some(_slots) = slots.filter(|_| !node.is_stopping() && !leased.is_past_deadline()) else { return released() };
    let handlers = node.handlers.find(event.subscription(), &event.event_type);
    if handlers.is_empty() {
        log_delivery!(warn, event, "no handler for event");
        return AttemptEnd::Report(Report::new(Outcome::Unhandled));
    }
    let cx = Context {
        envelope: event.clone(),
        producer: node.producer(),
        leased: leased.clone(),
        stopping: node.stopping.subscribe(),
    };
    run_handlers(node, cx, &handlers, earlier).await
}

/// Runs the handlers that have no result from an earlier attempt.
async fn run_handlers(
    node: &Arc<NodeState>,
    cx: Context,
    handlers: &[Arc<Handler>],
    earlier: &[HandlerResult],
) -> AttemptEnd {
    let has_result = |handler: &Handler| earlier.iter().any(|result| result.handler == handler.id);
    let to_run: Vec<_> = handlers.iter().filter(|handler| !has_result(handler)).cloned().collect();
    let (started, event) = (Instant::now(), cx.event());
    let Ok(policy) = node.policy_for(event).await else { return released() };
    let store_results = policy.handler_results == HandlerResultStorage::Immediately && to_run.len() > 1;
    let storage = store_results.then(|| ResultStorage::new(node, to_run.len()));
    let (plain, in_tx): (Vec<_>, Vec<_>) = to_run.into_iter().partition(|handler| handler.is_plain());
    let mut runs = run_concurrently(plain, &cx, storage).await;
    node.count_handled(event, &runs);
    if !in_tx.is_empty() {
        // Boxed: the future is large and would enlarge the future of every event.
        let share = policy.share_transaction;
        match Box::pin(tx::run_all(node, &cx, &in_tx, &mut runs, earlier, started, share)).await {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(tx::DatabaseUnavailable) if event.attempt() < UNAVAILABLE_ATTEMPTS_MAX => {
                return AttemptEnd::Report(snooze_report(event, &runs));
            }
            Err(tx::DatabaseUnavailable) => runs.extend(unavailable_failure(&in_tx, &runs)),
        }
    }
    let report = attempt_report(&runs, earlier, policy.unrecoverable, store_results);
    AttemptEnd::Report(report.execution_time_ms(millis_since(started)))
}

/// The failure of the handler during which the database became unavailable.
fn unavailable_failure(handlers: &[Arc<Handler>], runs: &[HandlerRun]) -> Option<HandlerRun> {
    let handler = handlers.iter().find(|handler| runs.iter().all(|run| run.handler != handler.id))?;
    let error = "the database became unavailable during every attempt".to_owned();
    Some(HandlerRun { handler: handler.id.clone(), failure: Some(Failure::Retry { after: None, error }) })
}

/// Runs handlers concurrently.
async fn run_concurrently(
    handlers: Vec<Arc<Handler>>,
    cx: &Context,
    storage: Option<ResultStorage>,
) -> Vec<HandlerRun> {
    if let [only] = &handlers[..] {
        return vec![run_handler(only.clone(), cx.clone(), storage).await];
    }
    let mut tasks = JoinSet::new();
    for handler in handlers {
        tasks.spawn(run_handler(handler, cx.clone(), storage.clone()).in_current_span());
    }
    let mut runs = Vec::new();
    while let Some(joined) = tasks.join_next().await {
        // Handler panics are already caught. A join error means that the runtime is shutting down.
        runs.push(joined.unwrap_or_else(|error| aborted_run(&error)));
    }
    // Sorted, so that the combined error does not depend on which handler finished first.
    runs.sort_by(|a, b| a.handler.cmp(&b.handler));
    runs
}

fn aborted_run(error: &tokio::task::JoinError) -> HandlerRun {
    HandlerRun { handler: "?".to_owned(), failure: Some(Failure::Retry { after: None, error: error.to_string() }) }
}

async fn run_handler(handler: Arc<Handler>, cx: Context, storage: Option<ResultStorage>) -> HandlerRun {
    let failure = match &handler.work {
        Work::Plain(work) => run_with_timeout(&handler, || work(cx.envelope.clone(), cx.clone())).await,
        // Other kinds of handlers run in `tx`.
        #[allow(unreachable_patterns)]
        _ => None,
    };
    let run = HandlerRun { handler: handler.id.clone(), failure };
    if let Some(storage) = storage {
        storage.handler_finished(&run, &cx).await;
    }
    run
}

/// Runs a handler's code with its timeout. A panic counts as a failure.
pub(super) async fn run_with_timeout(handler: &Handler, start: impl FnOnce() -> HandlerFuture) -> Option<Failure> {
    match tokio::time::timeout(handler.timeout, catch_panics(start)).await {
        Ok(Ok(handled)) => handled.err().map(|error| error.0),
        Ok(Err(panic)) => Some(Failure::panicked(&*panic)),
        Err(_) => Some(Failure::timed_out(handler.timeout)),
    }
}

async fn catch_panics(start: impl FnOnce() -> HandlerFuture) -> Result<Handled, Box<dyn Any + Send>> {
    let mut running = CatchPanics(Some(catch_unwind(AssertUnwindSafe(start))?));
    poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(handled)) => Poll::Ready(Ok(handled)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// A running handler. It may also panic when it is dropped.
struct CatchPanics(Option<HandlerFuture>);

impl CatchPanics {
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Handled> {
        self.0.as_mut().map_or(Poll::Pending, |running| running.as_mut().poll(cx))
    }
}

impl Drop for CatchPanics {
    fn drop(&mut self) {
        let running = self.0.take();
        if catch_unwind(AssertUnwindSafe(|| drop(running))).is_err() {
            tracing::warn!("a handler panicked while it was aborted");
        }
    }
}

/// Reports the outcome and retries while the database is unavailable, so that finished work is not repeated.
pub(super) async fn report_outcome(node: &NodeState, event: &Envelope, mut report: Report) {
    let (mut backoff, mut outcome_only) = (RetryBackoff::for_reports(), Some(Report::new(report.outcome.clone())));
    loop {
        let error = match node.queue.finish(&*event.0, report.clone()).await {
            Ok(Finished::Applied(_) | Finished::Repeated(_)) => return,
            Ok(Finished::Lost) if report.outcome == Outcome::Release => return,
            Ok(Finished::Lost) => return log_lost_lease(event),
            Err(error) => error,
        };
        if error.is_temporary() || matches!(error, Error::DatabaseReadOnly { .. }) {
            log_delivery!(warn, event, %error, "could not report the outcome; retrying");
            backoff.wait().await;
        } else if let Some(outcome_only) = outcome_only.take() {
            // The report contains something that cannot be stored. Report only the outcome.
            log_delivery!(warn, event, %error, "the report was rejected; reporting only the outcome");
            report = outcome_only;
        } else {
            log_delivery!(error, event, %error, "could not report the outcome; the lease will expire");
            return;
        }
    }
}

pub(super) fn log_lost_lease(event: &Envelope) {
    log_delivery!(warn, event, "the lease was lost before the outcome was reported; the outcome is ignored");
}
