//! What the handlers of a delivery came to, when several share it: the next attempt runs only those that have not
//! finished.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::event::delivery::{Delivery, LiveDelivery};
use crate::event::names;
use crate::policy::limits::Limits;
use crate::queue::decide::Transition;
use crate::queue::finish::fit;
use crate::queue::outcome::HandlerResult;
use crate::queue::{Core, Queue};
use crate::store::{ChangeGuard, DeliveryChange};

/// Which results of a delivery are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clear {
    Nothing,
    Failed,
    All,
}

impl DeliveryChange {
    /// Whether there can be anything to write or to clear.
    pub fn concerns_results(&self) -> bool {
        // A first attempt has only the results that it reports; if it was abandoned, also those that it stored before.
        let may_have = self.live.was_tried() || matches!(self.guard, ChangeGuard::ExpiredLease(_));
        !self.results.is_empty() || (may_have && self.clears_results() != Clear::Nothing)
    }

    /// What it reports that is worth keeping. Of a dead letter a redrive runs what never succeeded.
    pub fn kept_results(&self) -> impl Iterator<Item = &HandlerResult> {
        let kept = |result: &&HandlerResult| match self.transition {
            Transition::Requeue { .. } => true,
            Transition::Bury { .. } => result.succeeded,
            Transition::End { .. } => false,
        };
        self.results.iter().filter(kept)
    }

    /// What goes of that which was kept.
    pub fn clears_results(&self) -> Clear {
        match self.transition {
            Transition::Requeue { .. } => Clear::Nothing,
            Transition::Bury { .. } => Clear::Failed,
            Transition::End { .. } => Clear::All,
        }
    }
}

impl Queue {
    /// What earlier attempts of these deliveries reported of their handlers, for each by name.
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

/// A handler's result that is stored while its attempt is under way.
#[derive(Debug, Clone)]
pub(crate) struct InterimResult {
    pub live: LiveDelivery,
    pub result: HandlerResult,
}

impl Queue {
    /// Stores the result of one handler while the delivery is still being processed, so that the handler does not run
    /// again if this process dies. Returns `false` and stores nothing if the lease is lost.
    ///
    /// Concurrent calls share a transaction. A first attempt must name the stored results in its report, or they are
    /// not deleted with it.
    pub(crate) async fn store_handler_result(&self, delivery: &Delivery, result: HandlerResult) -> Result<bool> {
        let result = fitted(&result, self.limits());
        self.lines().results.call(InterimResult { live: delivery.live(), result }, 1).await
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

/// As the database can keep it.
pub(crate) fn fitted(result: &HandlerResult, limits: &Limits) -> HandlerResult {
    let error = result.error.as_deref().map(|error| fit(error, limits.error_bytes_max));
    HandlerResult { error, ..result.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::delivery::Lease;
    use crate::queue::decide::{decide_abandoned, decide_expired, give_back};
    use crate::queue::outcome::Action;
    use crate::store::AttemptRecord;

    fn change(attempts: u32, guard: ChangeGuard, transition: Transition, results: &[&str]) -> DeliveryChange {
        let lease = if guard == ChangeGuard::Free { None } else { Some(Lease(7)) };
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
    fn a_plain_first_attempt_costs_nothing_more() {
        let end = || Transition::End { forget: false };
        let (held, free, run_out) =
            (ChangeGuard::Lease(Lease(7)), ChangeGuard::Free, ChangeGuard::ExpiredLease(Lease(7)));
        let abandoned = || decide_abandoned(&change(1, run_out, end(), &[]).live).1;
        let table = [
            // attempts, guard, transition, results => concerned
            (1, held, end(), &[][..], false),
            (1, held, give_back(), &[], false),
            (1, held, decide_expired().1, &[], false),
            (9, held, give_back(), &[], false),
            (0, free, end(), &[], false),
            (0, free, decide_expired().1, &[], false),
            (1, held, end(), &["h"], true),
            (1, held, give_back(), &["h"], true),
            (2, held, end(), &[], true),
            (2, held, decide_expired().1, &[], true),
            // It waits after its first attempt.
            (1, free, end(), &[], true),
            (1, free, decide_expired().1, &[], true),
            (1, run_out, abandoned(), &[], true),
        ];
        for (attempts, guard, transition, results, concerned) in table {
            let change = change(attempts, guard, transition, results);
            assert_eq!(change.concerns_results(), concerned, "{change:?}");
        }
    }
}
