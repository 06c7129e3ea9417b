//! Processes a claimed run of events: runs the command for each and reports the outcome.

use std::sync::Arc;

use tokio::time::Instant;
use windlass_api::{FinishItem, FinishOutcome};

use super::Worker;
use super::lease::LeaseRenewer;
use super::outcome::{AttemptReport, CommandEnd, CommandResult};
use crate::api::responses::ClaimedEvent;

impl Worker {
    /// Processes consecutive events of a group in order. The first event that does not complete ends the run; the queue
    /// then releases the later ones.
    pub async fn process_run(self: Arc<Worker>, run: Vec<ClaimedEvent>, claim_sent_at: Instant) {
        for (n, event) in run.iter().enumerate() {
            if n > 0 && !self.shutdown.is_running() {
                self.report(self.report_item(event, FinishItem::new(event.id, FinishOutcome::Release))).await;
                return;
            }
            if !self.process_event(event, claim_sent_at).await {
                return;
            }
        }
    }

    /// Processes one event. Returns whether it is completed and the outcome is recorded.
    async fn process_event(self: &Arc<Worker>, event: &ClaimedEvent, claim_sent_at: Instant) -> bool {
        let renewer = LeaseRenewer::start(self, event, claim_sent_at);
        if !self.report_start(event).await {
            tracing::warn!(
                event_id = event.id,
                event_type = event.event_type,
                "the lease was lost before the command started"
            );
            return false;
        }
        let started_at = Instant::now();
        let result = self.run_command(event, &renewer).await;
        let took_ms = u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let CommandEnd::NotStarted(reason) = &result.end {
            // The event did not cause this, so every other event would fail as well.
            self.shutdown.fail(reason.clone());
        }
        let Some(AttemptReport { label, mut item }) = result.report(event.id, self.options.snooze) else {
            tracing::warn!(
                event_id = event.id,
                event_type = event.event_type,
                took_ms,
                "the lease was lost; the command was ended and its outcome is ignored"
            );
            return false;
        };
        if item.outcome != FinishOutcome::Release {
            item.execution_time_ms = Some(took_ms);
        }
        let is_completed = item.outcome == FinishOutcome::Complete;
        if !self.report(self.report_item(event, item)).await {
            return false;
        }
        log_outcome(event, label, took_ms, &result);
        is_completed
    }

    fn report_item(&self, event: &ClaimedEvent, item: FinishItem) -> FinishItem {
        let (lease, subscription) = (Some(event.lease.clone()), Some(self.options.subscription.clone()));
        FinishItem { lease, subscription, ..item }
    }
}

/// Logs one line per event.
fn log_outcome(event: &ClaimedEvent, outcome: &str, took_ms: u64, result: &CommandResult) {
    let (event_id, event_type, attempt) = (event.id, &event.event_type, event.attempt);
    match &result.end {
        CommandEnd::Exited(status) if status.success() => {
            tracing::info!(event_id, event_type, attempt, took_ms, "{outcome}");
        }
        CommandEnd::Exited(_) | CommandEnd::TimedOut(_) => {
            let error = result.stderr.last_line().unwrap_or_default();
            let exit_code = match &result.end {
                CommandEnd::Exited(status) => status.code(),
                _ => None,
            };
            tracing::warn!(event_id, event_type, attempt, took_ms, exit_code, error, "{outcome}");
        }
        CommandEnd::EventTooLarge(error) => tracing::warn!(event_id, event_type, attempt, error, "{outcome}"),
        _ => tracing::info!(event_id, event_type, attempt, took_ms, "{outcome}"),
    }
}
