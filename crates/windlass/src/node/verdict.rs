//! What becomes of an event after its handlers ran: pure.

use std::time::Duration;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::envelope::Envelope;
use super::error::Failure;
use crate::clock::SPAN_MAX;
use crate::error::panic_text;
use crate::observe::metrics::HandlerEnd;
use crate::policy::UnrecoverablePolicy;
use crate::policy::limits::Limits;
use crate::queue::finish::fit;
use crate::queue::outcome::{HandlerResult, Outcome, Report};

/// How long an event waits for a database that went away under it: at first, and at most.
const AWAY_FIRST: Duration = Duration::from_millis(100);
const AWAY_LONGEST: Duration = Duration::from_secs(1);
/// Of each error so much is kept in the record of several handlers, in bytes.
const ERROR_BYTES_MAX: usize = 8 << 10;

/// How one handler ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub handler: String,
    pub failure: Option<Failure>,
}

impl Run {
    /// For the counters.
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
/// `known` are the results of earlier attempts, whose handlers did not run again. `unrecoverable` decides whether an
/// unrecoverable error takes precedence over handlers that want to run again. `already_stored`: results of this attempt
/// may be in the database; the report names them so that they are deleted at the end.
pub(super) fn report(
    runs: &[Run],
    known: &[HandlerResult],
    unrecoverable: UnrecoverablePolicy,
    already_stored: bool,
) -> Report {
    let outcome = outcome(runs, known, unrecoverable);
    let several = runs.len() + known.len() > 1;
    let mut report = Report::new(outcome);
    if let Some(error) = error(runs, known, several) {
        report = report.error(error);
    }
    if let Some(detail) = detail(runs).filter(|_| several) {
        report = report.detail(detail);
    }
    if already_stored || (several && report.outcome != Outcome::Done) {
        report = report.handler_results(runs.iter().filter_map(result).collect());
    }
    report
}

/// What is put back in the middle, for longer each time; those that ended need not run again.
pub(super) fn put_back(event: &Envelope, runs: &[Run]) -> Report {
    let delay = AWAY_FIRST * 2_u32.saturating_pow(event.attempt() - 1);
    let delay = delay.min(AWAY_LONGEST);
    Report::new(Outcome::Snooze { delay }).handler_results(runs.iter().filter_map(result).collect())
}

fn outcome(runs: &[Run], known: &[HandlerResult], unrecoverable: UnrecoverablePolicy) -> Outcome {
    let (mut retries, mut after, mut snooze, mut dead) =
        (false, None, None, known.iter().any(|known| !known.succeeded));
    for run in runs {
        match &run.failure {
            Some(Failure::Retry { after: wish, .. }) => {
                (retries, after) = (true, after.max(wish.map(|wish| wish.min(SPAN_MAX))));
            }
            Some(Failure::Snooze { delay }) => snooze = snooze.max(Some(*delay.min(&SPAN_MAX))),
            Some(Failure::Unrecoverable { .. }) => dead = true,
            None => {}
        }
    }
    match (retries, snooze, dead) {
        (.., true) if unrecoverable == UnrecoverablePolicy::Finish => Outcome::dead(),
        (true, ..) => Outcome::Retry { after },
        (_, Some(delay), _) => Outcome::Snooze { delay },
        (.., true) => Outcome::dead(),
        _ => Outcome::Done,
    }
}

/// What went wrong, with the handlers' names where there are several.
fn error(runs: &[Run], known: &[HandlerResult], several: bool) -> Option<String> {
    let now = runs.iter().filter_map(|run| Some((&run.handler, run.failure.as_ref()?.error()?)));
    let before = known.iter().filter_map(|known| Some((&known.handler, known.error.as_deref()?)));
    let errors: Vec<String> = before
        .chain(now)
        .map(|(handler, error)| if several { format!("{handler}: {error}") } else { error.to_owned() })
        .collect();
    (!errors.is_empty()).then(|| errors.join("; "))
}

/// How each handler ended, for the record.
fn detail(runs: &[Run]) -> Option<Box<RawValue>> {
    if runs.iter().all(|run| run.failure.is_none()) {
        return None;
    }
    let max = Limits::default().detail_bytes_max;
    let lengths = std::iter::successors(Some(ERROR_BYTES_MAX), |length| (*length > 0).then_some(length / 2));
    lengths.filter_map(|length| each_handler(runs, length)).find(|detail| detail.get().len() <= max)
}

/// Errors are cut to this length.
fn each_handler(runs: &[Run], error_bytes_max: usize) -> Option<Box<RawValue>> {
    let each = runs.iter().map(|run| {
        let ended = run.failure.as_ref().map_or("done", Failure::name);
        let error = run.failure.as_ref().and_then(Failure::error).map(|error| fit(error, error_bytes_max));
        json!({ "handler": run.handler, "result": ended, "error": error })
    });
    to_raw_value(&json!({ "handlers": each.collect::<Vec<_>>() })).ok()
}

/// The result to store for the next attempt; `None` if the handler has to run again.
pub(super) fn result(run: &Run) -> Option<HandlerResult> {
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

    fn run(handler: &str, failure: Option<Failure>) -> Run {
        Run { handler: handler.into(), failure }
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

    fn known(succeeded: bool) -> HandlerResult {
        HandlerResult { handler: "k".into(), succeeded, error: (!succeeded).then(|| "never".into()) }
    }

    // Q11, Q12
    #[test]
    fn results_of_several_handlers_make_one_outcome() {
        let again = |after: Option<u64>| Outcome::Retry { after: after.map(secs) };
        let (snoozed, dead) = (|delay| Outcome::Snooze { delay: secs(delay) }, Outcome::dead);
        let table = [
            // this attempt, earlier ones => outcome under `RetryOthers`, under `Finish`
            (vec![None], vec![], Outcome::Done, Outcome::Done),
            (vec![None, None], vec![known(true)], Outcome::Done, Outcome::Done),
            (vec![retry(None)], vec![], again(None), again(None)),
            (vec![retry(Some(5)), retry(None), retry(Some(7))], vec![], again(Some(7)), again(Some(7))),
            (vec![None, retry(None), snooze(3)], vec![known(true)], again(None), again(None)),
            (vec![None, retry(None), never(), snooze(3)], vec![], again(None), dead()),
            (vec![None, snooze(3), snooze(4)], vec![], snoozed(4), snoozed(4)),
            (vec![None, never(), snooze(3), snooze(4)], vec![], snoozed(4), dead()),
            (vec![None, never()], vec![], dead(), dead()),
            (vec![None], vec![known(false)], dead(), dead()),
            (vec![retry(None)], vec![known(false)], again(None), dead()),
        ];
        for (failures, known, retry_others, finish) in table {
            let runs: Vec<Run> = failures.into_iter().map(|failure| run("h", failure)).collect();
            let outcome = |unrecoverable| report(&runs, &known, unrecoverable, false).outcome;
            let both = (outcome(UnrecoverablePolicy::RetryOthers), outcome(UnrecoverablePolicy::Finish));
            assert_eq!(both, (retry_others, finish), "{runs:?} {known:?}");
        }
    }

    #[test]
    fn many_long_errors_fit_into_the_record() {
        let wordy = || Some(Failure::Retry { after: None, error: "\u{1}".repeat(100_000) });
        let runs: Vec<Run> = (0..100).map(|n| run(&format!("{n}"), wordy())).collect();
        let detail = report(&runs, &[], UnrecoverablePolicy::RetryOthers, false).detail.unwrap();
        assert!((32 << 10..=64 << 10).contains(&detail.get().len()), "{}", detail.get().len());
    }

    #[test]
    fn only_what_need_not_run_again_is_remembered() {
        let report = |runs: &[Run]| report(runs, &[], UnrecoverablePolicy::RetryOthers, false);
        let reported = report(&[run("a", None), run("b", retry(None)), run("c", never())]);
        let remembered: Vec<_> = reported.handler_results.iter().map(|r| (r.handler.as_str(), r.succeeded)).collect();
        assert_eq!(remembered, [("a", true), ("c", false)]);
        assert_eq!(reported.error.as_deref(), Some("b: later; c: never"));
        let alone = report(&[run("a", retry(None))]);
        assert!(alone.handler_results.is_empty() && alone.detail.is_none());
        assert_eq!(alone.error.as_deref(), Some("later"));
    }

    #[test]
    fn a_completed_delivery_names_its_results_if_they_were_stored() {
        let runs = [run("a", None), run("b", None)];
        let named = |stored| report(&runs, &[], UnrecoverablePolicy::RetryOthers, stored).handler_results.len();
        assert_eq!((named(false), named(true)), (0, 2));
    }
}
