//! Combines the results of a delivery's handlers into one report. No I/O.

use std::time::Duration;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::envelope::Envelope;
use super::error::Failure;
use crate::clock::DURATION_MAX;
use crate::error::panic_text;
use crate::observe::metrics::HandlerEnd;
use crate::policy::UnrecoverablePolicy;
use crate::policy::limits::Limits;
use crate::queue::finish::truncate_error;
use crate::queue::outcome::{HandlerResult, Outcome, Report};

/// How long a delivery is snoozed when the database became unavailable during a transaction.
const UNAVAILABLE_DELAY_MIN: Duration = Duration::from_millis(100);
const UNAVAILABLE_DELAY_MAX: Duration = Duration::from_secs(1);
/// The most bytes of each error in the detail of an attempt with several handlers.
const ERROR_BYTES_MAX: usize = 8 << 10;

/// The result of one handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HandlerRun {
    pub handler: String,
    pub failure: Option<Failure>,
}

impl HandlerRun {
    /// The result label in the metrics.
    pub fn end(&self) -> HandlerEnd {
        match &self.failure {
            None => HandlerEnd::Success,
            Some(Failure::Retry { .. }) => HandlerEnd::Transient,
            Some(Failure::Snooze { .. }) => HandlerEnd::Snoozed,
            Some(Failure::Unrecoverable { .. }) => HandlerEnd::Unrecoverable,
        }
    }
}

/// Combines the results of all handlers into the report on the attempt.
///
/// `earlier` are the results of earlier attempts, whose handlers did not run again. `unrecoverable` decides whether an
/// unrecoverable error takes precedence over handlers that want to run again. `already_stored`: results of this attempt
/// may be in the database; the report names them so that they are deleted with the delivery.
pub(super) fn attempt_report(
    runs: &[HandlerRun],
    earlier: &[HandlerResult],
    unrecoverable: UnrecoverablePolicy,
    already_stored: bool,
) -> Report {
    let outcome = outcome(runs, earlier, unrecoverable);
    let several = runs.len() + earlier.len() > 1;
    let mut report = Report::new(outcome);
    if let Some(error) = error(runs, earlier, several) {
        report = report.error(error);
    }
    if let Some(detail) = detail(runs).filter(|_| several) {
        report = report.detail(detail);
    }
    if already_stored || (several && report.outcome != Outcome::Done) {
        report = report.handler_results(runs.iter().filter_map(final_result).collect());
    }
    report
}

/// The report of an attempt that was interrupted because the database became unavailable. It snoozes the delivery,
/// longer with each attempt, and stores the results of the handlers that finished.
pub(super) fn snooze_report(event: &Envelope, runs: &[HandlerRun]) -> Report {
    let delay = UNAVAILABLE_DELAY_MIN * 2_u32.saturating_pow(event.attempt() - 1);
    let delay = delay.min(UNAVAILABLE_DELAY_MAX);
    Report::new(Outcome::Snooze { delay }).handler_results(runs.iter().filter_map(final_result).collect())
}

fn outcome(runs: &[HandlerRun], earlier: &[HandlerResult], unrecoverable: UnrecoverablePolicy) -> Outcome {
    let (mut retry, mut after, mut snooze, mut dead) =
        (false, None, None, earlier.iter().any(|result| !result.succeeded));
    for run in runs {
        match &run.failure {
            Some(Failure::Retry { after: requested, .. }) => {
                (retry, after) = (true, after.max(requested.map(|requested| requested.min(DURATION_MAX))));
            }
            Some(Failure::Snooze { delay }) => snooze = snooze.max(Some(*delay.min(&DURATION_MAX))),
            Some(Failure::Unrecoverable { .. }) => dead = true,
            None => {}
        }
    }
    match (retry, snooze, dead) {
        (.., true) if unrecoverable == UnrecoverablePolicy::Finish => Outcome::dead(),
        (true, ..) => Outcome::Retry { after },
        (_, Some(delay), _) => Outcome::Snooze { delay },
        (.., true) => Outcome::dead(),
        _ => Outcome::Done,
    }
}

/// The combined error message. With several handlers, each error is prefixed with its handler's name.
fn error(runs: &[HandlerRun], earlier: &[HandlerResult], several: bool) -> Option<String> {
    let now = runs.iter().filter_map(|run| Some((&run.handler, run.failure.as_ref()?.error()?)));
    let before = earlier.iter().filter_map(|result| Some((&result.handler, result.error.as_deref()?)));
    let errors: Vec<String> = before
        .chain(now)
        .map(|(handler, error)| if several { format!("{handler}: {error}") } else { error.to_owned() })
        .collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

/// The result of each handler as JSON, stored with the attempt.
fn detail(runs: &[HandlerRun]) -> Option<Box<RawValue>> {
    if runs.iter().all(|run| run.failure.is_none()) {
        return None;
    }
    let max = Limits::default().detail_bytes_max;
    let lengths = std::iter::successors(Some(ERROR_BYTES_MAX), |length| (*length > 0).then_some(length / 2));
    lengths.filter_map(|length| detail_with(runs, length)).find(|detail| detail.get().len() <= max)
}

/// The detail with errors truncated to `error_bytes_max`.
fn detail_with(runs: &[HandlerRun], error_bytes_max: usize) -> Option<Box<RawValue>> {
    let handlers = runs.iter().map(|run| {
        let result = run.failure.as_ref().map_or("done", Failure::name);
        let error = run.failure.as_ref().and_then(Failure::error).map(|error| truncate_error(error, error_bytes_max));
        json!({ "handler": run.handler, "result": result, "error": error })
    });
    to_raw_value(&json!({ "handlers": handlers.collect::<Vec<_>>() })).ok()
}

/// The result to store for later attempts; `None` if the handler has to run again.
pub(super) fn final_result(run: &HandlerRun) -> Option<HandlerResult> {
    let (succeeded, error) = match &run.failure {
        None => (true, None),
        Some(Failure::Unrecoverable { error }) => (false, Some(error.clone())),
        Some(Failure::Retry { .. } | Failure::Snooze { .. }) => return None,
    };
    Some(HandlerResult { handler: run.handler.clone(), succeeded, error })
}

impl Failure {
    pub fn error(&self) -> Option<&str> {
        match self {
            Failure::Retry { error, .. } | Failure::Unrecoverable { error } => Some(error),
            Failure::Snooze { .. } => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Failure::Retry { .. } => "retry",
            Failure::Snooze { .. } => "snooze",
            Failure::Unrecoverable { .. } => "unrecoverable",
        }
    }

    pub fn timed_out(after: Duration) -> Failure {
        Failure::Retry { after: None, error: format!("timed out after {after:?}") }
    }

    pub fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
        Failure::Retry { after: None, error: format!("panicked: {}", panic_text(panic)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(handler: &str, failure: Option<Failure>) -> HandlerRun {
        HandlerRun { handler: handler.into(), failure }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn retry(after: Option<u64>) -> Option<Failure> {
        Some(Failure::Retry { after: after.map(secs), error: "later".into() })
    }

    fn snooze(delay: u64) -> Option<Failure> {
        Some(Failure::Snooze { delay: secs(delay) })
    }

    fn never() -> Option<Failure> {
        Some(Failure::Unrecoverable { error: "never".into() })
    }

    fn earlier(succeeded: bool) -> HandlerResult {
        HandlerResult { handler: "k".into(), succeeded, error: (!succeeded).then(|| "never".into()) }
    }

    // Q11, Q12
    #[test]
    fn results_of_several_handlers_are_combined() {
        let again = |after: Option<u64>| Outcome::Retry { after: after.map(secs) };
        let (snoozed, dead) = (|delay| Outcome::Snooze { delay: secs(delay) }, Outcome::dead);
        let table = [
            // this attempt, earlier attempts => outcome under `RetryOthers`, under `Finish`
            (vec![None], vec![], Outcome::Done, Outcome::Done),
            (vec![None, None], vec![earlier(true)], Outcome::Done, Outcome::Done),
            (vec![retry(None)], vec![], again(None), again(None)),
            (vec![retry(Some(5)), retry(None), retry(Some(7))], vec![], again(Some(7)), again(Some(7))),
            (vec![None, retry(None), snooze(3)], vec![earlier(true)], again(None), again(None)),
            (vec![None, retry(None), never(), snooze(3)], vec![], again(None), dead()),
            (vec![None, snooze(3), snooze(4)], vec![], snoozed(4), snoozed(4)),
            (vec![None, never(), snooze(3), snooze(4)], vec![], snoozed(4), dead()),
            (vec![None, never()], vec![], dead(), dead()),
            (vec![None], vec![earlier(false)], dead(), dead()),
            (vec![retry(None)], vec![earlier(false)], again(None), dead()),
        ];
        for (failures, earlier, retry_others, finish) in table {
            let runs: Vec<HandlerRun> = failures.into_iter().map(|failure| run("h", failure)).collect();
            let outcome = |unrecoverable| attempt_report(&runs, &earlier, unrecoverable, false).outcome;
            let both = (outcome(UnrecoverablePolicy::RetryOthers), outcome(UnrecoverablePolicy::Finish));
            assert_eq!(both, (retry_others, finish), "{runs:?} {earlier:?}");
        }
    }

    #[test]
    fn many_long_errors_fit_into_the_detail() {
        let long_error = || Some(Failure::Retry { after: None, error: "\u{1}".repeat(100_000) });
        let runs: Vec<HandlerRun> = (0..100).map(|n| run(&format!("{n}"), long_error())).collect();
        let detail = attempt_report(&runs, &[], UnrecoverablePolicy::RetryOthers, false).detail.unwrap();
        assert!((32 << 10..=64 << 10).contains(&detail.get().len()), "{}", detail.get().len());
    }

    #[test]
    fn only_final_results_are_stored() {
        let report = |runs: &[HandlerRun]| attempt_report(runs, &[], UnrecoverablePolicy::RetryOthers, false);
        let reported = report(&[run("a", None), run("b", retry(None)), run("c", never())]);
        let stored: Vec<_> = reported.handler_results.iter().map(|r| (r.handler.as_str(), r.succeeded)).collect();
        assert_eq!(stored, [("a", true), ("c", false)]);
        assert_eq!(reported.error.as_deref(), Some("b: later; c: never"));
        let alone = report(&[run("a", retry(None))]);
        assert!(alone.handler_results.is_empty() && alone.detail.is_none());
        assert_eq!(alone.error.as_deref(), Some("later"));
    }

    #[test]
    fn completed_delivery_names_its_results_if_they_were_stored() {
        let runs = [run("a", None), run("b", None)];
        let named = |stored| attempt_report(&runs, &[], UnrecoverablePolicy::RetryOthers, stored).handler_results.len();
        assert_eq!((named(false), named(true)), (0, 2));
    }
}
