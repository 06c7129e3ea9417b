//! One attempt at a delivery on a node, from the claim to its end.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::Instrument;

use super::context::Context;
use super::envelope::Envelope;
use super::error::{Failure, Handled};
use super::hand::Grip;
use super::handler::{Handler, Running, Work};
use super::pause::Pause;
use super::pool::InHand;
use super::result_storage::ResultStorage;
use super::shared::Shared;
use super::tx;
use super::verdict::{Run, put_back, report};
use crate::clock::millis_since;
use crate::error::Error;
use crate::observe::trace;
use crate::policy::HandlerResultStorage;
use crate::queue::outcome::{Finished, HandlerResult, Outcome, Report};

/// What could not start within this time after all is given back: other nodes may have slots.
const START_MAX: Duration = Duration::from_secs(1);
/// That the database goes away is nobody's failure. But an event that meets it at so many attempts may be the reason.
const AWAY_MAX: u32 = 10;

/// A line of the log about an event in hand.
macro_rules! say {
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
    /// The delivery was completed in the handlers' transaction.
    Committed,
    /// The lease is lost. What handlers wrote in a transaction was rolled back.
    Lost,
}

/// Runs the handlers of a delivery and reports the outcome. `known` are the handlers' results of earlier attempts; without
/// them the delivery is released.
pub(super) async fn attend(in_hand: InHand, event: Envelope, known: Option<Vec<HandlerResult>>) {
    let node = in_hand.node().clone();
    let grip = Grip::new(event.0.clone());
    let _hold = node.hand.hold(&grip);
    match attempt(&in_hand, &event, &grip, known.as_deref()).await {
        AttemptEnd::Report(report) if !grip.is_lost() => settle(&node, &event, report).await,
        AttemptEnd::Committed => {}
        AttemptEnd::Report(_) | AttemptEnd::Lost => tell_lost(&event),
    }
}

/// Runs the handlers of a delivery, unless the node stops.
pub(super) async fn attempt(
    in_hand: &InHand,
    event: &Envelope,
    grip: &Arc<Grip>,
    known: Option<&[HandlerResult]>,
) -> AttemptEnd {
    let span = trace::handling(&event.0);
    let ended = tokio::select! {
        // A handler that does not wait ends the attempt without a poll of the other branch.
        biased;
        ended = work(in_hand, event, grip, known).instrument(span.clone()) => ended,
        () = in_hand.node().is_abandoned() => released(),
    };
    if let AttemptEnd::Report(report) = &ended {
        trace::handled(&span, report);
    }
    ended
}

fn released() -> AttemptEnd {
    AttemptEnd::Report(Report::new(Outcome::Release))
}

async fn work(in_hand: &InHand, event: &Envelope, grip: &Arc<Grip>, known: Option<&[HandlerResult]>) -> AttemptEnd {
    let (node, Some(known)) = (in_hand.node(), known) else { return released() };
    let slots = tokio::select! {
        biased;
        slots = in_hand.slots() => slots,
        () = node.is_stopping() => None,
        () = tokio::time::sleep(START_MAX) => None,
    };
    // What could not start in time is not started: nobody gets it any more, and upkeep lets it end.
    let Some(_slots) = slots.filter(|_| !node.stops() && !grip.is_expired()) else { return released() };
    let handlers = node.handlers.of(event.subscription(), &event.event_type);
    if handlers.is_empty() {
        say!(warn, event, "no handler for event");
        return AttemptEnd::Report(Report::new(Outcome::Unhandled));
    }
    let cx = Context {
        envelope: event.clone(),
        producer: node.producer(),
        grip: grip.clone(),
        stopping: node.stopping.subscribe(),
    };
    handle(node, cx, &handlers, known).await
}

/// Runs the handlers that have not finished in an earlier attempt.
async fn handle(node: &Arc<Shared>, cx: Context, handlers: &[Arc<Handler>], known: &[HandlerResult]) -> AttemptEnd {
    let is_known = |handler: &Handler| known.iter().any(|known| known.handler == handler.id);
    let todo: Vec<_> = handlers.iter().filter(|handler| !is_known(handler)).cloned().collect();
    let (begun, event) = (Instant::now(), cx.event());
    let Ok(policy) = node.policy_for(event).await else { return released() };
    let stores = policy.handler_results == HandlerResultStorage::Immediately && todo.len() > 1;
    let storage = stores.then(|| ResultStorage::new(node, todo.len()));
    let (plain, in_tx): (Vec<_>, Vec<_>) = todo.into_iter().partition(|handler| handler.is_plain());
    let mut runs = run_all(plain, &cx, storage).await;
    node.count_handled(event, &runs);
    if !in_tx.is_empty() {
        // Boxed, since it is large, and would make every event's future as large.
        let share = policy.share_transaction;
        match Box::pin(tx::run_all(node, &cx, &in_tx, &mut runs, known, begun, share)).await {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(tx::Unavailable) if event.attempt() < AWAY_MAX => return AttemptEnd::Report(put_back(event, &runs)),
            Err(tx::Unavailable) => runs.extend(away(&in_tx, &runs)),
        }
    }
    AttemptEnd::Report(report(&runs, known, policy.unrecoverable, stores).execution_time_ms(millis_since(begun)))
}

/// The failure of the handler under which the database went away.
fn away(handlers: &[Arc<Handler>], runs: &[Run]) -> Option<Run> {
    let handler = handlers.iter().find(|handler| runs.iter().all(|run| run.handler != handler.id))?;
    let error = "the database went away under it, time and again".to_owned();
    Some(Run { handler: handler.id.clone(), failure: Some(Failure::Retry { after: None, error }) })
}

/// Runs handlers concurrently.
async fn run_all(handlers: Vec<Arc<Handler>>, cx: &Context, storage: Option<ResultStorage>) -> Vec<Run> {
    if let [only] = &handlers[..] {
        return vec![run(only.clone(), cx.clone(), storage).await];
    }
    let mut running = JoinSet::new();
    for handler in handlers {
        running.spawn(run(handler, cx.clone(), storage.clone()).in_current_span());
    }
    let mut runs = Vec::new();
    while let Some(ended) = running.join_next().await {
        // Panics are caught before: only the end of the runtime cuts one off, and this with it.
        runs.push(ended.unwrap_or_else(|error| cut_off(&error)));
    }
    // In the order of their names, so that errors are told alike whoever comes first.
    runs.sort_by(|a, b| a.handler.cmp(&b.handler));
    runs
}

fn cut_off(error: &tokio::task::JoinError) -> Run {
    Run { handler: "?".to_owned(), failure: Some(Failure::Retry { after: None, error: error.to_string() }) }
}

async fn run(handler: Arc<Handler>, cx: Context, storage: Option<ResultStorage>) -> Run {
    let failure = match &handler.work {
        Work::Plain(work) => bounded(&handler, || work(cx.envelope.clone(), cx.clone())).await,
        // The others have a transaction to run in.
        #[allow(unreachable_patterns)]
        _ => None,
    };
    let run = Run { handler: handler.id.clone(), failure };
    if let Some(storage) = storage {
        storage.handler_finished(&run, &cx).await;
    }
    run
}

/// Runs a handler's code within its time; a panic is a failure.
pub(super) async fn bounded(handler: &Handler, start: impl FnOnce() -> Running) -> Option<Failure> {
    match tokio::time::timeout(handler.timeout, guarded(start)).await {
        Ok(Ok(handled)) => handled.err().map(|error| error.0),
        Ok(Err(panic)) => Some(Failure::panicked(&*panic)),
        Err(_) => Some(Failure::timed_out(handler.timeout)),
    }
}

async fn guarded(start: impl FnOnce() -> Running) -> Result<Handled, Box<dyn Any + Send>> {
    let mut running = Guarded(Some(catch_unwind(AssertUnwindSafe(start))?));
    poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| running.poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(handled)) => Poll::Ready(Ok(handled)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// A handler's code at work. It may panic at its end, too, when it is cut off.
struct Guarded(Option<Running>);

impl Guarded {
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Handled> {
        self.0.as_mut().map_or(Poll::Pending, |running| running.as_mut().poll(cx))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let running = self.0.take();
        if catch_unwind(AssertUnwindSafe(|| drop(running))).is_err() {
            tracing::warn!("a handler panicked when it was cut off");
        }
    }
}

/// Reports until it is on record: what was done shall not be done again for a database that is away.
pub(super) async fn settle(node: &Shared, event: &Envelope, mut report: Report) {
    let (mut pause, mut bare) = (Pause::after_a_failed_report(), Some(Report::new(report.outcome.clone())));
    loop {
        let error = match node.queue.finish(&*event.0, report.clone()).await {
            Ok(Finished::Applied(_) | Finished::Repeated(_)) => return,
            Ok(Finished::Lost) if report.outcome == Outcome::Release => return,
            Ok(Finished::Lost) => return tell_lost(event),
            Err(error) => error,
        };
        if error.is_temporary() || matches!(error, Error::DatabaseReadOnly { .. }) {
            say!(warn, event, %error, "could not report the end of an event; trying again");
            pause.wait().await;
        } else if let Some(bare) = bare.take() {
            // What cannot be stored of it is left out: its outcome counts.
            say!(warn, event, %error, "the report on an event is refused; only its outcome is kept");
            report = bare;
        } else {
            say!(error, event, %error, "could not report the end of an event; its lease runs out");
            return;
        }
    }
}

pub(super) fn tell_lost(event: &Envelope) {
    say!(warn, event, "the lease ran out before the event was handled; its end does not count");
}
