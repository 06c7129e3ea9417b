//! Keeping an event while its command runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Worker;
use super::claim::Taken;
use crate::Result;
use crate::api::Refusal;

/// A lease is renewed when one part in this many of it has passed. The rest is for a server that is away.
const RENEW_AFTER: u32 = 3;
/// A renewal that failed is tried again after one part in this many of the lease.
const RENEW_AGAIN: u32 = 10;

/// So long an answer is waited for before the work begins.
const START_MAX: Duration = Duration::from_secs(2);

/// Renews the lease until it is dropped.
pub struct Hold {
    lost: watch::Receiver<bool>,
    renewing: AbortHandle,
}

impl Hold {
    /// The lease began when the event was asked for, at the earliest.
    pub fn begin(worker: &Arc<Worker>, event: &Taken, asked_at: Instant) -> Hold {
        let (sender, lost) = watch::channel(false);
        let (worker, id, lease) = (worker.clone(), event.id, event.lease.clone());
        let renewing = tokio::spawn(async move {
            worker.renew(id, &lease, asked_at).await;
            let _ = sender.send(true);
        });
        Hold { lost, renewing: renewing.abort_handle() }
    }

    /// Ready once somebody else may have the event.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        // Where the sender is gone without a word, nothing is known to be lost.
        if lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Worker {
    /// Says that work begins; `false`: the event is not ours any more. Where nobody answers, work begins all the same.
    pub async fn say_start(&self, event: &Taken) -> bool {
        let told = self.tell(event.id, "start", &event.lease, START_MAX, None).await;
        !told.is_err_and(|error| is_lost(&*error))
    }

    /// Ends when the lease is lost.
    async fn renew(&self, id: i64, lease: &str, asked_at: Instant) {
        let span = self.options.lease;
        // One that gets no answer must leave time for another.
        let answer_max = (span / RENEW_AFTER).max(START_MAX);
        let mut next = asked_at + span / RENEW_AFTER;
        loop {
            tokio::time::sleep_until(next).await;
            match self.tell(id, "heartbeat", lease, answer_max, Some(span)).await {
                Ok(()) => next = Instant::now() + span / RENEW_AFTER,
                Err(error) if is_lost(&*error) => return,
                Err(error) => {
                    tracing::warn!(%error, event_id = id, "could not renew the lease; trying again");
                    next = Instant::now() + span / RENEW_AGAIN;
                }
            }
        }
    }

    async fn tell(&self, id: i64, what: &str, lease: &str, answer_max: Duration, span: Option<Duration>) -> Result {
        let mut body = json!({ "lease": lease, "subscription": self.options.subscription });
        if let Some(span) = span {
            body["lease_ms"] = json!(span.as_millis() as u64);
        }
        self.ask(&format!("/events/{id}/{what}"), &body, answer_max).await?;
        Ok(())
    }
}

/// Whether the queue says that the event is not ours, or not there any more.
fn is_lost(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == "lost" || refusal.code == "event_not_found")
}
