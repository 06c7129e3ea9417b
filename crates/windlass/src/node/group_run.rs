//! Runs: consecutive deliveries of one group, handled one after the other under one lease.
//!
//! A delivery is handled while the completions of earlier ones are being committed. They are committed in order, one
//! batch after the other. If the process ends, deliveries that were not committed are redelivered in order. The first
//! delivery that is not completed ends the run; the database releases the rest with it.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::attempt::{AttemptEnd, log_lost_lease, report_outcome, run_attempt};
use super::backoff::RetryBackoff;
use super::envelope::Envelope;
use super::leases::LeasedDelivery;
use super::pool::InProgressGuard;
use super::state::NodeState;
use crate::queue::finish::LeasedEvent;
use crate::queue::outcome::{Finished, Outcome, Report};

/// Handles a run. Its deliveries are first attempts, so no handler has finished before.
pub(super) async fn process_run(guard: InProgressGuard, run: Vec<Envelope>) {
    let node = guard.node().clone();
    let leased_run: Vec<Arc<LeasedDelivery>> = run.iter().map(|event| LeasedDelivery::new(event.0.clone())).collect();
    // All leases are renewed until the whole run is handled, so that none expires while its delivery waits.
    let renewals: Vec<_> = leased_run.iter().map(|leased| node.leases.start_renewing(leased)).collect();
    let (mut completions, mut started) = (Completions::new(&node), 0);
    for (event, leased) in run.iter().zip(&leased_run) {
        // A transactional handler must not commit before the completions of earlier deliveries are committed.
        if completions.lost || leased.is_lost() || (node.has_transactional_handler(event) && !completions.flush().await)
        {
            break;
        }
        started += 1;
        match run_attempt(&guard, event, leased, Some(&[])).await {
            AttemptEnd::Committed => {}
            AttemptEnd::Report(report) if leased.is_lost() => {
                drop(report);
                log_lost_lease(event);
                break;
            }
            AttemptEnd::Report(report) if matches!(report.outcome, Outcome::Done | Outcome::DoneWithErrors) => {
                completions.add(event.clone(), report).await;
            }
            AttemptEnd::Report(report) => {
                if completions.flush().await {
                    report_outcome(&node, event, report).await;
                }
                break;
            }
            AttemptEnd::Lost => {
                log_lost_lease(event);
                break;
            }
        }
    }
    completions.flush().await;
    // The database has already released the rest, unless the response to a commit was lost.
    if let Some(next) = run.get(started) {
        report_outcome(&node, next, Report::new(Outcome::Release)).await;
    }
    drop(renewals);
}

/// The completions of a run, committed in order while later deliveries are handled.
struct Completions {
    node: Arc<NodeState>,
    pending: Vec<(Envelope, Report)>,
    /// The task that commits the current batch. It returns whether the lease was still held.
    committing: Option<JoinHandle<bool>>,
    /// The lease is lost, and with it all uncompleted deliveries of the run.
    lost: bool,
}

impl Completions {
    fn new(node: &Arc<NodeState>) -> Completions {
        Completions { node: node.clone(), pending: Vec::new(), committing: None, lost: false }
    }

    /// Adds a completion. Starts a commit unless a batch is already being committed.
    async fn add(&mut self, event: Envelope, report: Report) {
        self.pending.push((event, report));
        if self.committing.as_ref().is_none_or(JoinHandle::is_finished) {
            self.commit_next_batch().await;
        }
    }

    /// Waits until all completions are committed. Returns `false` if the lease is lost.
    async fn flush(&mut self) -> bool {
        while !self.lost && (self.committing.is_some() || !self.pending.is_empty()) {
            self.commit_next_batch().await;
        }
        !self.lost
    }

    /// Waits for the current batch, then starts to commit the next one if completions are pending.
    async fn commit_next_batch(&mut self) {
        if let Some(committing) = self.committing.take() {
            // A join error means that the runtime is shutting down: the batch may not be committed.
            self.lost |= !committing.await.unwrap_or(false);
        }
        if !self.lost && !self.pending.is_empty() {
            let (node, batch) = (self.node.clone(), std::mem::take(&mut self.pending));
            self.committing = Some(tokio::spawn(async move { commit(&node, batch).await }));
        }
    }
}

/// Reports a batch and retries while the database is unavailable. Returns `false` if the lease is lost.
async fn commit(node: &NodeState, batch: Vec<(Envelope, Report)>) -> bool {
    let mut backoff = RetryBackoff::for_reports();
    loop {
        let reports = batch.iter().map(|(event, report)| (LeasedEvent::from(&*event.0), report.clone())).collect();
        let results = match node.queue.finish_all(reports).await {
            Ok(results) => results,
            Err(error) if error.is_temporary() => {
                let events = batch.len();
                tracing::warn!(%error, events, "could not report the completions of a run; retrying");
                backoff.wait().await;
                continue;
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        for ((event, report), result) in batch.iter().zip(results) {
            match result {
                Ok(Finished::Applied(_) | Finished::Repeated(_)) => {}
                Ok(Finished::Lost) => {
                    log_lost_lease(event);
                    return false;
                }
                // Report it alone, which retries.
                Err(_) => report_outcome(node, event, report.clone()).await,
            }
        }
        return true;
    }
}
