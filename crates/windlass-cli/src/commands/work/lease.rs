//! Renews the lease of an event while its command runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use windlass_api::{HeartbeatRequest, LeaseHolderRequest};

use super::Worker;
use crate::api::ApiError;
use crate::api::responses::ClaimedEvent;

/// A lease is renewed after one third of it. The rest is a reserve for when the server is unreachable.
const RENEW_DIVISOR: u32 = 3;
/// A failed renewal is retried after one tenth of the lease.
const RETRY_DIVISOR: u32 = 10;

/// The command starts after this time even without a response to the start report.
const START_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// A background task that renews the lease until the value is dropped.
pub struct LeaseRenewer {
    lost: watch::Receiver<bool>,
    task: AbortHandle,
}

impl LeaseRenewer {
    /// Starts the renewal. The lease began no earlier than the claim request was sent.
    pub fn start(worker: &Arc<Worker>, event: &ClaimedEvent, claim_sent_at: Instant) -> LeaseRenewer {
        let (sender, lost) = watch::channel(false);
        let (worker, id, lease) = (worker.clone(), event.id, event.lease.clone());
        let task = tokio::spawn(async move {
            worker.renew(id, &lease, claim_sent_at).await;
            let _ = sender.send(true);
        });
        LeaseRenewer { lost, task: task.abort_handle() }
    }

    /// Completes when the lease is lost, so that another worker may have the event.
    pub async fn wait_for_loss(&self) {
        let mut lost = self.lost.clone();
        // If the task ended without a message, the lease is not known to be lost.
        if lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for LeaseRenewer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Worker {
    /// Reports the start of the attempt. Returns `false` if the lease is lost. Without a response the command starts
    /// anyway.
    pub async fn report_start(&self, event: &ClaimedEvent) -> bool {
        let request = LeaseHolderRequest {
            worker_id: None,
            lease: Some(event.lease.clone()),
            subscription: Some(self.options.subscription.clone()),
        };
        let reported = self.post(&format!("/events/{}/start", event.id), &request, START_REPORT_TIMEOUT).await;
        !reported.is_err_and(|error| is_lost(&*error))
    }

    /// Renews the lease until it is lost.
    async fn renew(&self, id: i64, lease: &str, claim_sent_at: Instant) {
        let lease_duration = self.options.lease;
        // A renewal without a response must leave time for another.
        let timeout = (lease_duration / RENEW_DIVISOR).max(START_REPORT_TIMEOUT);
        let request = HeartbeatRequest {
            worker_id: None,
            lease: Some(lease.to_owned()),
            subscription: Some(self.options.subscription.clone()),
            lease_ms: Some(lease_duration.as_millis() as u64),
        };
        let mut next_at = claim_sent_at + lease_duration / RENEW_DIVISOR;
        loop {
            tokio::time::sleep_until(next_at).await;
            match self.post(&format!("/events/{id}/heartbeat"), &request, timeout).await {
                Ok(_) => next_at = Instant::now() + lease_duration / RENEW_DIVISOR,
                Err(error) if is_lost(&*error) => return,
                Err(error) => {
                    tracing::warn!(%error, event_id = id, "could not renew the lease; trying again");
                    next_at = Instant::now() + lease_duration / RETRY_DIVISOR;
                }
            }
        }
    }
}

/// Whether the queue says that the lease is lost or the event does not exist anymore.
fn is_lost(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<ApiError>()
        .is_some_and(|api_error| api_error.code == "lost" || api_error.code == "event_not_found")
}
