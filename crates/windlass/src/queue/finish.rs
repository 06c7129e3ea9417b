//! Finishes attempts: turns reports into changes, which the store applies if the lease is still the current one.

use std::collections::HashSet;
use std::sync::Arc;

use crate::clock::DURATION_MAX;
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

/// Identifies a leased delivery for [`Queue::finish`], [`Queue::start`] and [`Queue::extend`].
///
/// Convert it from a [`Delivery`], or name the event with its lease or worker.
#[derive(Debug, Clone)]
pub struct LeasedEvent {
    holder: HeldDelivery,
    /// Known if it was converted from a [`Delivery`]. Otherwise it is looked up.
    live: Option<LiveDelivery>,
}

impl LeasedEvent {
    /// The delivery of the event to the subscription `main`, with this lease.
    pub fn by_lease(event_id: i64, lease: Lease) -> LeasedEvent {
        LeasedEvent::new(event_id, HeldBy::Lease(lease))
    }

    /// The delivery of the event to the subscription `main`, leased to this worker.
    pub fn by_worker(event_id: i64, worker_id: impl Into<String>) -> LeasedEvent {
        LeasedEvent::new(event_id, HeldBy::Worker(worker_id.into()))
    }

    /// Selects the delivery to this subscription instead of `main`.
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
    /// Ends an attempt. The policy decides whether a failed delivery is retried.
    ///
    /// Repeating a recorded report returns the recorded attempt. If the lease is lost, nothing changes.
    pub async fn finish(&self, leased: impl Into<LeasedEvent>, report: Report) -> Result<Finished> {
        let leased = leased.into();
        self.check_finish(&leased, &report)?;
        self.topology().await?;
        let mut finished = self.coalescers().finish.call(vec![(leased, report)], 1).await?;
        finished.pop().ok_or(Error::Closed)?
    }

    fn check_finish(&self, leased: &LeasedEvent, report: &Report) -> Result<()> {
        leased.check()?;
        check_report(report, self.limits())
    }

    /// Ends many attempts, each with its own result.
    pub async fn finish_all(&self, reports: Vec<(LeasedEvent, Report)>) -> Result<Vec<Result<Finished>>> {
        let max = self.limits().finish_batch_max;
        if reports.len() > max {
            return Err(Error::invalid("items", format!("has {} items; the limit is {max}", reports.len())));
        }
        let (mut results, mut valid) = (Vec::with_capacity(reports.len()), Vec::with_capacity(reports.len()));
        for (leased, report) in reports {
            match self.check_finish(&leased, &report) {
                Ok(()) => {
                    valid.push((leased, report));
                    results.push(None);
                }
                Err(error) => results.push(Some(Err(error))),
            }
        }
        self.topology().await?;
        if !valid.is_empty() {
            let weight = valid.len();
            let mut finished = self.coalescers().finish.call(valid, weight).await?.into_iter();
            results.iter_mut().filter(|result| result.is_none()).for_each(|result| *result = finished.next());
        }
        // The coalescer returns a result for each report, unless the queue is closed.
        Ok(results.into_iter().map(|result| result.unwrap_or(Err(Error::Closed))).collect())
    }

    /// Completes a delivery: COMPLETED without errors, COMPLETED_WITH_ERRORS with errors.
    pub async fn finalize(&self, leased: impl Into<LeasedEvent>, errors: &[String]) -> Result<Finished> {
        if errors.is_empty() {
            return self.finish(leased, Report::done()).await;
        }
        let detail =
            serde_json::value::to_raw_value(errors).map_err(|error| Error::invalid("errors", error.to_string()))?;
        let mut report = Report::new(Outcome::DoneWithErrors).error(errors.join("; "));
        // The text always has the errors, but is cut at its limit. The list is omitted if it is too long.
        if detail.get().len() <= self.limits().detail_bytes_max {
            report = report.detail(detail);
        }
        self.finish(leased, report).await
    }
}

fn check_report(report: &Report, limits: &Limits) -> Result<()> {
    match &report.outcome {
        Outcome::Retry { after: Some(after) } if *after > DURATION_MAX => {
            return Err(Error::invalid("retry_after_ms", "must be at most 100 years"));
        }
        Outcome::Snooze { delay } if *delay > DURATION_MAX => {
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
        // Apply the units one by one, so that only the unit with invalid data fails.
        Err(Error::Database { .. } | Error::DataRefused { .. }) if sizes.len() > 1 => {
            let mut results = Vec::with_capacity(sizes.len());
            let mut rest = &mut items[..];
            for size in sizes {
                let (unit, others) = rest.split_at_mut(size);
                results.push(finish(&core, &namespace, unit).await);
                rest = others;
            }
            Ok(results)
        }
        Err(error) => Err(error),
    }
}

async fn finish(core: &Core, namespace: &str, items: &mut [(LeasedEvent, Report)]) -> Result<FinishedUnit> {
    find_live(core, namespace, items).await?;
    let topology = core.topology(namespace).await?;

    let mut results: Vec<Option<Result<Finished>>> = vec![None; items.len()];
    let mut applied_before = HashSet::new();
    loop {
        let batch = next_changes(core, &topology, items, &mut applied_before);
        let applied = change::apply(core, namespace, &batch.changes).await;
        // Put the deliveries back: if the batch failed, each unit is applied again.
        for (index, change) in batch.item_indexes.iter().zip(batch.changes) {
            items[*index].0.live = Some(change.live);
        }
        for (index, attempt) in batch.item_indexes.into_iter().zip(applied?) {
            results[index] = attempt.map(|attempt| Ok(Finished::Applied(attempt)));
        }
        if !batch.is_partial {
            break;
        }
    }
    resolve_unapplied(core, namespace, items, &mut results).await?;
    Ok(results.into_iter().flatten().collect())
}

/// Loads the deliveries that were identified by worker or lease only.
async fn find_live(core: &Core, namespace: &str, items: &mut [(LeasedEvent, Report)]) -> Result<()> {
    let unknown: Vec<&mut LeasedEvent> =
        items.iter_mut().map(|(leased, _)| leased).filter(|leased| leased.live.is_none()).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let holders: Vec<HeldDelivery> = unknown.iter().map(|leased| leased.holder.clone()).collect();
    let found = core.store.held(namespace, &holders).await?;
    for (leased, live) in unknown.into_iter().zip(found) {
        leased.live = live;
    }
    Ok(())
}

/// Changes for one call of the store: at most one for each delivery.
#[derive(Default)]
struct ChangeBatch {
    changes: Vec<DeliveryChange>,
    /// The index of the report that each change comes from.
    item_indexes: Vec<usize>,
    /// More reports are left, for the same deliveries with other leases. Only the store knows which lease is valid.
    is_partial: bool,
}

/// Builds the next batch of changes. Of several reports for a delivery with the same lease, the first counts. Reports
/// with one lease are applied in order, because they may belong to a run.
fn next_changes(
    core: &Core,
    topology: &Topology,
    items: &mut [(LeasedEvent, Report)],
    applied_before: &mut HashSet<(i64, i64, Lease)>,
) -> ChangeBatch {
    let (mut batch, mut seen, mut deferred) = (ChangeBatch::default(), HashSet::new(), HashSet::new());
    for (index, (leased, report)) in items.iter_mut().enumerate() {
        let Some((live, lease)) = leased.live.as_ref().and_then(|live| Some((live, live.lease?))) else { continue };
        let (event_id, subscription_id) = (live.event_id, live.subscription_id);
        if applied_before.contains(&(event_id, subscription_id, lease)) {
            continue;
        }
        if deferred.contains(&lease) || !seen.insert((event_id, subscription_id)) {
            deferred.insert(lease);
            continue;
        }
        applied_before.insert((event_id, subscription_id, lease));
        if let Some(live) = leased.live.take() {
            batch.item_indexes.push(index);
            batch.changes.push(reported_change(core, topology, live, lease, report));
        }
    }
    batch.is_partial = !deferred.is_empty();
    batch
}

/// The change that a report makes to a delivery, to be applied in a handler's transaction.
pub(crate) async fn change_for_report(core: &Core, delivery: &Delivery, report: &Report) -> Result<DeliveryChange> {
    let topology = core.topology(&delivery.event.namespace).await?;
    Ok(reported_change(core, &topology, delivery.live(), delivery.lease, report))
}

fn reported_change(
    core: &Core,
    topology: &Topology,
    live: LiveDelivery,
    lease: Lease,
    report: &Report,
) -> DeliveryChange {
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
            error: report.error.as_deref().map(|error| truncate_error(error, core.limits.error_bytes_max)),
            detail: report.detail.clone(),
        },
        results: report.handler_results.iter().map(|result| handler_results::truncate(result, &core.limits)).collect(),
        succeeded: matches!(report.outcome, Outcome::Done | Outcome::DoneWithErrors),
    }
}

/// An error message that the database can store: cut to `max` bytes, and without U+0000.
pub(crate) fn truncate_error(error: &str, max: usize) -> String {
    let mut error = error.replace('\0', "\u{fffd}");
    error.truncate(error.floor_char_boundary(max));
    error
}

/// Finds the results of reports that changed nothing: recorded before, lost, or for an event that does not exist.
async fn resolve_unapplied(
    core: &Core,
    namespace: &str,
    items: &[(LeasedEvent, Report)],
    results: &mut [Option<Result<Finished>>],
) -> Result<()> {
    let unapplied: Vec<usize> = (0..items.len()).filter(|index| results[*index].is_none()).collect();
    if unapplied.is_empty() {
        return Ok(());
    }
    let holders: Vec<HeldDelivery> = unapplied.iter().map(|index| items[*index].0.holder.clone()).collect();
    let ids: Vec<i64> = holders.iter().map(|holder| holder.event_id).collect();
    let recorded = core.store.recorded(namespace, &holders).await?;
    let exist = core.store.exists(namespace, &ids).await?;
    for ((index, recorded), exists) in unapplied.into_iter().zip(recorded).zip(exist) {
        let (leased, report) = &items[index];
        results[index] = Some(match recorded {
            Some(attempt) if is_recorded_as(&report.outcome, attempt.action) => Ok(Finished::Repeated(attempt)),
            _ if exists => Ok(Finished::Lost),
            _ => Err(Error::EventNotFound { namespace: namespace.to_owned(), event_id: leased.holder.event_id }),
        });
    }
    let lost = results.iter().filter(|result| matches!(result, Some(Ok(Finished::Lost)))).count();
    core.metrics.lost(namespace, lost as u64);
    Ok(())
}

/// Whether an attempt with this outcome may be recorded with this action.
fn is_recorded_as(outcome: &Outcome, action: Action) -> bool {
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
    fn long_error_is_cut_between_characters() {
        assert_eq!(truncate_error("aäb", 2), "a");
        assert_eq!(truncate_error("a\0b", 10), "a\u{fffd}b");
        assert_eq!(truncate_error("a\0b", 3), "a");
    }
}
