//! Stores the results of single handlers, for deliveries with several handlers. The next attempt skips handlers that
//! have finished.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::delivery::{Delivery, LiveDelivery};
use crate::event::names;
use crate::policy::limits::Limits;
use crate::queue::decide::Transition;
use crate::queue::finish::truncate_error;
use crate::queue::outcome::HandlerResult;
use crate::queue::{Core, Queue};
use crate::store::{ChangeGuard, DeliveryChange};

/// Which stored results of a delivery a change deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clear {
    Nothing,
    Failed,
    All,
}

impl DeliveryChange {
    /// Whether the change may write or delete handler results.
    pub fn concerns_results(&self) -> bool {
        // A first attempt has stored results only if it was abandoned.
        let may_have = self.live.was_tried() || matches!(self.guard, ChangeGuard::ExpiredLease(_));
        !self.results.is_empty() || (may_have && self.clears_results() != Clear::Nothing)
    }

    /// The reported results to store. A redriven dead letter runs the handlers that have not succeeded.
    pub fn kept_results(&self) -> impl Iterator<Item = &HandlerResult> {
        let kept = |result: &&HandlerResult| match self.transition {
            Transition::Requeue { .. } => true,
            Transition::DeadLetter { .. } => result.succeeded,
            Transition::End { .. } => false,
        };
        self.results.iter().filter(kept)
    }

    /// The stored results to delete.
    pub fn clears_results(&self) -> Clear {
        match self.transition {
            Transition::Requeue { .. } => Clear::Nothing,
            Transition::DeadLetter { .. } => Clear::Failed,
            Transition::End { .. } => Clear::All,
        }
    }
}

impl Queue {
    /// The stored handler results of earlier attempts of these deliveries, each list sorted by handler name.
    pub async fn handler_results(&self, deliveries: &[&Delivery]) -> Result<Vec<Vec<HandlerResult>>> {
        let live: Vec<LiveDelivery> = deliveries.iter().map(|delivery| delivery.live()).collect();
        let tried: Vec<LiveDelivery> = live.iter().filter(|live| live.was_tried()).cloned().collect();
        if tried.is_empty() {
            return Ok(vec![Vec::new(); live.len()]);
        }
        let mut found = self.store().handler_results(self.namespace(), &tried).await?.into_iter();
        let results =
            |live: &LiveDelivery| if live.was_tried() { found.next().unwrap_or_default() } else { Vec::new() };
        Ok(live.iter().map(results).collect())
    }
}

/// A handler's result that is stored during the attempt.
#[derive(Debug, Clone)]
pub(crate) struct InterimResult {
    pub live: LiveDelivery,
    pub result: HandlerResult,
}

impl Queue {
    /// Stores the result of one handler while the delivery is still being processed, so that the handler does not run
    /// again if this process dies. Returns `false` and stores nothing if the lease is lost.
    ///
    /// Concurrent calls share a transaction. The report of a first attempt must include the stored results; otherwise
    /// they are not deleted when the delivery finishes.
    pub(crate) async fn store_handler_result(&self, delivery: &Delivery, result: HandlerResult) -> Result<bool> {
        let result = truncate(&result, self.limits());
        self.coalescers().results.call(InterimResult { live: delivery.live(), result }, 1).await
    }
}

/// Stores the interim results of several callers in one transaction.
pub(crate) async fn run(
    core: Arc<Core>,
    namespace: Arc<str>,
    results: Vec<InterimResult>,
) -> Result<Vec<Result<bool>>> {
    let stored = core.store.store_handler_results(&namespace, &results, core.clock.overridden()).await?;
    Ok(stored.into_iter().map(Ok).collect())
}

pub(crate) fn check(results: &[HandlerResult], limits: &Limits) -> Result<()> {
    let (count, max) = (results.len(), limits.handlers_max);
    if count > max {
        return Err(Error::invalid("handler_results", format!("has {count} results; the limit is {max}")));
    }
    let mut seen = HashSet::new();
    for result in results {
        names::check("handler", &result.handler)?;
        if !seen.insert(&result.handler) {
            return Err(Error::invalid("handler", format!("'{}' has two results", result.handler)));
        }
    }
    Ok(())
}

/// The result with its error message cut to the limit.
pub(crate) fn truncate(result: &HandlerResult, limits: &Limits) -> HandlerResult {
    let error = result.error.as_deref().map(|error| truncate_error(error, limits.error_bytes_max));
    HandlerResult { error, ..result.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::delivery::Lease;
    use crate::queue::decide::{decide_abandoned, decide_expired, release_transition};
    use crate::queue::outcome::Action;
    use crate::store::AttemptRecord;

    fn change(attempts: u32, guard: ChangeGuard, transition: Transition, results: &[&str]) -> DeliveryChange {
        let lease = if guard == ChangeGuard::Pending { None } else { Some(Lease(7)) };
        let live = LiveDelivery {
            event_id: 1,
            subscription_id: 1,
            lane_id: 1,
            event_type: "t".into(),
            lease,
            attempts,
            attempts_limit: 1,
            retry_count: 0,
            max_retries: None,
            subscription: "main".into(),
            group_id: None,
            picked_at: None,
        };
        let result = |name: &&str| HandlerResult { handler: name.to_string(), succeeded: true, error: None };
        let results = results.iter().map(result).collect();
        let (action, record) = (Action::Completed, AttemptRecord::default());
        DeliveryChange { live, guard, action, transition, record, results, succeeded: true }
    }

    #[test]
    fn first_attempt_without_results_touches_no_results() {
        let end = || Transition::End { forget: false };
        let (leased, pending, expired) =
            (ChangeGuard::Lease(Lease(7)), ChangeGuard::Pending, ChangeGuard::ExpiredLease(Lease(7)));
        let abandoned = || decide_abandoned(&change(1, expired, end(), &[]).live).1;
        let table = [
            // attempts, guard, transition, results => concerned
            (1, leased, end(), &[][..], false),
            (1, leased, release_transition(), &[], false),
            (1, leased, decide_expired().1, &[], false),
            (9, leased, release_transition(), &[], false),
            (0, pending, end(), &[], false),
            (0, pending, decide_expired().1, &[], false),
            (1, leased, end(), &["h"], true),
            (1, leased, release_transition(), &["h"], true),
            (2, leased, end(), &[], true),
            (2, leased, decide_expired().1, &[], true),
            // Pending after its first attempt.
            (1, pending, end(), &[], true),
            (1, pending, decide_expired().1, &[], true),
            (1, expired, abandoned(), &[], true),
        ];
        for (attempts, guard, transition, results, concerned) in table {
            let change = change(attempts, guard, transition, results);
            assert_eq!(change.concerns_results(), concerned, "{change:?}");
        }
    }
}
