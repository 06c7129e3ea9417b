//! One event, from the claim to its report.

use std::sync::Arc;

use serde_json::json;
use tokio::time::Instant;

use super::Worker;
use super::claim::Taken;
use super::hold::Hold;
use super::verdict::{Ended, Ran, Verdict};

impl Worker {
    pub async fn attempt(self: Arc<Worker>, event: Taken, asked_at: Instant) {
        let hold = Hold::begin(&self, &event, asked_at);
        if !self.say_start(&event).await {
            return tracing::warn!(event_id = event.id, event_type = event.event_type, "the lease was lost at once");
        }
        let begun = Instant::now();
        let ran = self.run(&event, &hold).await;
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Ended::NotStarted(why) = &ran.ended {
            // The event is not to blame.
            self.stop.break_off(why.clone());
        }
        let Some(Verdict { word, mut item }) = ran.verdict(self.options.snooze) else {
            return tracing::warn!(
                event_id = event.id,
                event_type = event.event_type,
                took_ms,
                "the lease was lost; the command was ended, and its end does not count"
            );
        };
        item["event_id"] = json!(event.id);
        item["lease"] = json!(event.lease);
        item["subscription"] = json!(self.options.subscription);
        if item["outcome"] != "release" {
            item["execution_time_ms"] = json!(took_ms);
        }
        if self.report(event.id, item).await {
            tell(&event, word, took_ms, &ran);
        }
    }
}

/// One line for each event.
fn tell(event: &Taken, outcome: &str, took_ms: u64, ran: &Ran) {
    let (event_id, event_type, attempt) = (event.id, &event.event_type, event.attempt);
    match &ran.ended {
        Ended::Exited(status) if status.success() => {
            tracing::info!(event_id, event_type, attempt, took_ms, "{outcome}");
        }
        Ended::Exited(_) | Ended::TimedOut(_) => {
            let error = ran.stderr.last_line().unwrap_or_default();
            let exit_code = match &ran.ended {
                Ended::Exited(status) => status.code(),
                _ => None,
            };
            tracing::warn!(event_id, event_type, attempt, took_ms, exit_code, error, "{outcome}");
        }
        Ended::TooLarge(error) => tracing::warn!(event_id, event_type, attempt, error, "{outcome}"),
        _ => tracing::info!(event_id, event_type, attempt, took_ms, "{outcome}"),
    }
}
