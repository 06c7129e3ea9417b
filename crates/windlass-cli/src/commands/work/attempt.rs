//! One event, from the claim to its report.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::Worker;
use super::claim::Taken;
use super::hold::Hold;
use super::verdict::{Ended, Ran, Verdict};

impl Worker {
    /// Consecutive events of a group, in order. The first one that is not done ends the run: the queue releases the others
    /// with it.
    pub async fn attempt_all(self: Arc<Worker>, run: Vec<Taken>, asked_at: Instant) {
        for (n, event) in run.iter().enumerate() {
            if n > 0 && !self.stop.goes_on() {
                self.report(event.id, self.item(event, json!({ "outcome": "release" }))).await;
                return;
            }
            if !self.attempt(event, asked_at).await {
                return;
            }
        }
    }

    /// Whether the event is done, and that is on record.
    async fn attempt(self: &Arc<Worker>, event: &Taken, asked_at: Instant) -> bool {
        let hold = Hold::begin(self, event, asked_at);
        if !self.say_start(event).await {
            tracing::warn!(event_id = event.id, event_type = event.event_type, "the lease was lost at once");
            return false;
        }
        let begun = Instant::now();
        let ran = self.run(event, &hold).await;
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Ended::NotStarted(why) = &ran.ended {
            // The event is not to blame.
            self.stop.break_off(why.clone());
        }
        let Some(Verdict { word, mut item }) = ran.verdict(self.options.snooze) else {
            tracing::warn!(
                event_id = event.id,
                event_type = event.event_type,
                took_ms,
                "the lease was lost; the command was ended, and its end does not count"
            );
            return false;
        };
        if item["outcome"] != "release" {
            item["execution_time_ms"] = json!(took_ms);
        }
        let is_done = item["outcome"] == "complete";
        if !self.report(event.id, self.item(event, item)).await {
            return false;
        }
        tell(event, word, took_ms, &ran);
        is_done
    }

    fn item(&self, event: &Taken, mut item: Value) -> Value {
        item["event_id"] = json!(event.id);
        item["lease"] = json!(event.lease);
        item["subscription"] = json!(self.options.subscription);
        item
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
