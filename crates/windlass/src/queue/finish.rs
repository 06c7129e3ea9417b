//! Ending an attempt: decided here, applied by the store, guarded by the lease.

use std::collections::HashSet;
use std::sync::Arc;

use crate::clock::SPAN_MAX;
use crate::error::{Error, Result};
use crate::event::check_json;
use crate::event::delivery::{Delivery, Lease, LiveDelivery};
use crate::event::names;
use crate::policy::limits::Limits;
use crate::queue::change;
use crate::queue::decide::decide;
use crate::queue::handler_results;
use crate::queue::outcome::{Action, Finished, Outcome, Report};
use crate::queue::{Core, Queue};
use crate::store::{AttemptRecord, ChangeGuard, DeliveryChange, HeldBy, HeldDelivery};
use crate::topology::{MAIN, Topology};

/// Whose delivery is meant, and the proof of holding it.
#[derive(Debug, Clone)]
pub struct LeasedEvent {
    holder: HeldDelivery,
    /// Known where the delivery itself was given: then nothing has to be looked up.
    live: Option<LiveDelivery>,
}

impl LeasedEvent {
    /// The delivery of `event_id` to the subscription `main`, held with this lease.
    pub fn by_lease(event_id: i64, lease: Lease) -> LeasedEvent {
        LeasedEvent::new(event_id, HeldBy::Lease(lease))
    }

    /// The delivery of `event_id` to the subscription `main`, held by whoever goes by this name.
    pub fn by_worker(event_id: i64, worker_id: impl Into<String>) -> LeasedEvent {
        LeasedEvent::new(event_id, HeldBy::Worker(worker_id.into()))
    }

    /// The delivery to another subscription.
    pub fn of_subscription(mut self, subscription: impl Into<String>) -> LeasedEvent {
        self.holder.subscription = subscription.into();
        self
    }

    fn new(event_id: i64, by: HeldBy) -> LeasedEvent {
        LeasedEvent { holder: HeldDelivery { event_id, subscription: MAIN.to_owned(), by }, live: None }
    }

    pub(crate) fn live(&self) -> Option<LiveDelivery> {
        self.live.clone()
    }

    pub(crate) fn into_holder(self) -> HeldDelivery {
        self.holder
    }

    pub(crate) fn check(&self) -> Result<()> {
        names::check("subscription", &self.holder.subscription)?;
        match &self.holder.by {
            HeldBy::Worker(worker_id) => names::check("worker_id", worker_id),
            HeldBy::Lease(_) | HeldBy::Anyone => Ok(()),
        }
    }
}

impl From<&Delivery> for LeasedEvent {
    fn from(delivery: &Delivery) -> LeasedEvent {
        let (event_id, subscription) = (delivery.event.id, delivery.subscription.clone());
        let holder = HeldDelivery { event_id, subscription, by: HeldBy::Lease(delivery.lease) };
        LeasedEvent { holder, live: Some(delivery.live()) }
    }
}

/// The reports of one call.
pub(crate) type FinishUnit = Vec<(LeasedEvent, Report)>;
pub(crate) type FinishedUnit = Vec<Result<Finished>>;

impl Queue {
    /// Ends an attempt. What follows is the policy's decision. A report that was recorded before is
    /// answered with the record; a lost lease changes nothing.
    pub async fn finish(&self, held: impl Into<LeasedEvent>, report: Report) -> Result<Finished> {
        let held = held.into();
        self.check_end(&held, &report)?;
        self.topology().await?;
        let mut finished = self.lines().finish.call(vec![(held, report)], 1).await?;
        finished.pop().ok_or(Error::Closed)?
    }

    fn check_end(&self, held: &LeasedEvent, report: &Report) -> Result<()> {
        held.check()?;
        check_report(report, self.limits())
    }

    /// Ends many attempts, each with its own result.
    pub async fn finish_all(&self, reports: Vec<(LeasedEvent, Report)>) -> Result<Vec<Result<Finished>>> {
        let max = self.limits().finish_batch_max;
        if reports.len() > max {
            return Err(Error::invalid("items", format!("has {} items; the limit is {max}", reports.len())));
        }
        let (mut answers, mut good) = (Vec::with_capacity(reports.len()), Vec::with_capacity(reports.len()));
        for (held, report) in reports {
            match self.check_end(&held, &report) {
                Ok(()) => {
                    good.push((held, report));
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        self.topology().await?;
        if !good.is_empty() {
            let weight = good.len();
            let mut finished = self.lines().finish.call(good, weight).await?.into_iter();
            answers.iter_mut().filter(|answer| answer.is_none()).for_each(|answer| *answer = finished.next());
        }
        // The line answers for each; it is closed where it does not.
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Err(Error::Closed))).collect())
    }

    /// The source documents' name for it: done, with or without errors.
    pub async fn finalize(&self, held: impl Into<LeasedEvent>, errors: &[String]) -> Result<Finished> {
        if errors.is_empty() {
            return self.finish(held, Report::done()).await;
        }
        let detail =
            serde_json::value::to_raw_value(errors).map_err(|error| Error::invalid("errors", error.to_string()))?;
        let mut report = Report::new(Outcome::DoneWithErrors).error(errors.join("; "));
        // Too long as a list, they are still there as text, as far as it is kept.
        if detail.get().len() <= self.limits().detail_bytes_max {
            report = report.detail(detail);
        }
        self.finish(held, report).await
    }
}

fn check_report(report: &Report, limits: &Limits) -> Result<()> {
    match &report.outcome {
        Outcome::Retry { after: Some(after) } if *after > SPAN_MAX => {
            return Err(Error::invalid("retry_after_ms", "must be at most 100 years"));
        }
        Outcome::Snooze { delay } if *delay > SPAN_MAX => {
            return Err(Error::invalid("delay_ms", "must be at most 100 years"));
        }
        Outcome::Dead { reason } => names::check_text("reason", reason, limits.title_bytes_max)?,
        _ => {}
    }
    if report.execution_time_ms.is_some_and(|ms| i64::try_from(ms).is_err()) {
        return Err(Error::invalid("execution_time_ms", "is too large"));
    }
    handler_results::check(&report.handler_results, limits)?;
    match &report.detail {
        Some(detail) => check_json("detail", detail.get(), limits.detail_bytes_max, limits),
        None => Ok(()),
    }
}

/// Applies the reports of several callers in one transaction.
pub(crate) async fn run(
    core: Arc<Core>,
    namespace: Arc<str>,
    units: Vec<FinishUnit>,
) -> Result<Vec<Result<FinishedUnit>>> {
    let sizes: Vec<usize> = units.iter().map(Vec::len).collect();
    let mut items: Vec<(LeasedEvent, Report)> = units.into_iter().flatten().collect();
    match finish(&core, &namespace, &mut items).await {
        Ok(finished) => {
            let mut rest = finished.into_iter();
            Ok(sizes.into_iter().map(|size| Ok(rest.by_ref().take(size).collect())).collect())
        }
        // Whoever brought what cannot be stored is the only one to fail.
        Err(Error::Database { .. } | Error::DataRefused { .. }) if sizes.len() > 1 => {
            let mut answers = Vec::with_capacity(sizes.len());
            let mut rest = &mut items[..];
            for size in sizes {
                let (unit, others) = rest.split_at_mut(size);
                answers.push(finish(&core, &namespace, unit).await);
                rest = others;
            }
            Ok(answers)
        }
        Err(error) => Err(error),
    }
}

async fn finish(core: &Core, namespace: &str, items: &mut [(LeasedEvent, Report)]) -> Result<FinishedUnit> {
    find_live(core, namespace, items).await?;
    let topology = core.topology(namespace).await?;

    let mut answers: Vec<Option<Result<Finished>>> = vec![None; items.len()];
    let mut applied_before = HashSet::new();
    loop {
        let round = changes(core, &topology, items, &mut applied_before);
        let applied = change::apply(core, namespace, &round.changes).await;
        // Whoever asks again, since others shared this, asks about the same attempt.
        for (place, change) in round.places.iter().zip(round.changes) {
            items[*place].0.live = Some(change.live);
        }
        for (place, attempt) in round.places.into_iter().zip(applied?) {
            answers[place] = attempt.map(|attempt| Ok(Finished::Applied(attempt)));
        }
        if !round.is_partial {
            break;
        }
    }
    look_up_rest(core, namespace, items, &mut answers).await?;
    Ok(answers.into_iter().flatten().collect())
}

/// Looks up the deliveries that were named by worker or lease only.
async fn find_live(core: &Core, namespace: &str, items: &mut [(LeasedEvent, Report)]) -> Result<()> {
    let unknown: Vec<&mut LeasedEvent> =
        items.iter_mut().map(|(held, _)| held).filter(|held| held.live.is_none()).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let holders: Vec<HeldDelivery> = unknown.iter().map(|held| held.holder.clone()).collect();
    let found = core.store.held(namespace, &holders).await?;
    for (held, live) in unknown.into_iter().zip(found) {
        held.live = live;
    }
    Ok(())
}

/// Changes that one call of the store applies: at most one for each delivery.
#[derive(Default)]
struct Round {
    changes: Vec<DeliveryChange>,
    /// Which report each change comes from.
    places: Vec<usize>,
    /// There are reports of the same deliveries with other leases. Only the store knows which lease is valid.
    is_partial: bool,
}

/// A change for each delivery that is held. Of two reports with the same lease, the first counts. Reports with one lease are
/// applied in order, because they may be those of a run.
fn changes(
    core: &Core,
    topology: &Topology,
    items: &mut [(LeasedEvent, Report)],
    applied_before: &mut HashSet<(i64, i64, Lease)>,
) -> Round {
    let (mut round, mut seen, mut put_off) = (Round::default(), HashSet::new(), HashSet::new());
    for (place, (held, report)) in items.iter_mut().enumerate() {
        let Some((live, lease)) = held.live.as_ref().and_then(|live| Some((live, live.lease?))) else { continue };
        let (event_id, subscription_id) = (live.event_id, live.subscription_id);
        if applied_before.contains(&(event_id, subscription_id, lease)) {
            continue;
        }
        if put_off.contains(&lease) || !seen.insert((event_id, subscription_id)) {
            put_off.insert(lease);
            continue;
        }
        applied_before.insert((event_id, subscription_id, lease));
        if let Some(live) = held.live.take() {
            round.places.push(place);
            round.changes.push(reported(core, topology, live, lease, report));
        }
    }
    round.is_partial = !put_off.is_empty();
    round
}

/// What a report makes of a delivery, for a transaction that somebody else commits.
pub(crate) async fn change_of(core: &Core, delivery: &Delivery, report: &Report) -> Result<DeliveryChange> {
    let topology = core.topology(&delivery.event.namespace).await?;
    Ok(reported(core, &topology, delivery.live(), delivery.lease, report))
}

fn reported(core: &Core, topology: &Topology, live: LiveDelivery, lease: Lease, report: &Report) -> DeliveryChange {
    let policy = topology.policy_of(&live);
    let (action, transition) = decide(&report.outcome, &live, &policy, fastrand::f64());
    DeliveryChange {
        live,
        guard: ChangeGuard::Lease(lease),
        action,
        transition,
        record: AttemptRecord {
            status_code: report.status_code,
            execution_time_ms: report.execution_time_ms,
            error: report.error.as_deref().map(|error| fit(error, core.limits.error_bytes_max)),
            detail: report.detail.clone(),
        },
        results: report.handler_results.iter().map(|result| handler_results::fitted(result, &core.limits)).collect(),
        succeeded: matches!(report.outcome, Outcome::Done | Outcome::DoneWithErrors),
    }
}

/// An error message that the database can keep: without U+0000, and not too long.
pub(crate) fn fit(error: &str, max: usize) -> String {
    let mut end = error.len().min(max);
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    error[..end].replace('\0', "\u{fffd}")
}

/// Answers the reports that changed nothing: recorded before, lost, or of no event at all.
async fn look_up_rest(
    core: &Core,
    namespace: &str,
    items: &[(LeasedEvent, Report)],
    answers: &mut [Option<Result<Finished>>],
) -> Result<()> {
    let places: Vec<usize> = (0..items.len()).filter(|place| answers[*place].is_none()).collect();
    if places.is_empty() {
        return Ok(());
    }
    let holders: Vec<HeldDelivery> = places.iter().map(|place| items[*place].0.holder.clone()).collect();
    let ids: Vec<i64> = holders.iter().map(|holder| holder.event_id).collect();
    let recorded = core.store.recorded(namespace, &holders).await?;
    let exist = core.store.exists(namespace, &ids).await?;
    for ((place, recorded), exists) in places.into_iter().zip(recorded).zip(exist) {
        let (held, report) = &items[place];
        answers[place] = Some(match recorded {
            Some(attempt) if is_end_of(&report.outcome, attempt.action) => Ok(Finished::Repeated(attempt)),
            _ if exists => Ok(Finished::Lost),
            _ => Err(Error::EventNotFound { namespace: namespace.to_owned(), event_id: held.holder.event_id }),
        });
    }
    let lost = answers.iter().filter(|answer| matches!(answer, Some(Ok(Finished::Lost)))).count();
    core.metrics.lost(namespace, lost as u64);
    Ok(())
}

/// Whether an attempt with this outcome can have been recorded so.
fn is_end_of(outcome: &Outcome, action: Action) -> bool {
    match outcome {
        Outcome::Done => action == Action::Completed,
        Outcome::DoneWithErrors => action == Action::CompletedWithErrors,
        Outcome::Retry { .. } | Outcome::Dead { .. } => {
            matches!(action, Action::Failed | Action::CompletedWithErrors)
        }
        Outcome::Snooze { .. } => action == Action::Snoozed,
        Outcome::Release => action == Action::Released,
        Outcome::Unhandled => matches!(action, Action::Failed | Action::Released),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_cut_between_characters() {
        assert_eq!(fit("aäb", 2), "a");
        assert_eq!(fit("a\0b", 10), "a\u{fffd}b");
    }
}
