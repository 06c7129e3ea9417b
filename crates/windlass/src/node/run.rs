//! A run: consecutive deliveries of one group, handled one after the other.
//!
//! A delivery is handled while the completions of those before it are being committed. They are committed in order, one batch
//! after the other: if the process ends, what was not committed is redelivered in order. The first delivery that is not
//! completed ends the run; the database releases the rest with it.

use std::sync::Arc;

use tokio::task::JoinHandle;

use super::attempt::{AttemptEnd, attempt, settle, tell_lost};
use super::envelope::Envelope;
use super::hand::Grip;
use super::pause::Pause;
use super::pool::InHand;
use super::shared::Shared;
use crate::queue::finish::LeasedEvent;
use crate::queue::outcome::{Finished, Outcome, Report};

/// Handles a run. Its deliveries are first attempts, so no handler has finished before.
pub(super) async fn attend_run(in_hand: InHand, run: Vec<Envelope>) {
    let node = in_hand.node().clone();
    let grips: Vec<Arc<Grip>> = run.iter().map(|event| Grip::new(event.0.clone())).collect();
    // LeasedEvent for as long as the run is handled, since the lease must not expire before the last delivery is.
    let holds: Vec<_> = grips.iter().map(|grip| node.hand.hold(grip)).collect();
    let (mut completions, mut begun) = (Completions::new(&node), 0);
    for (event, grip) in run.iter().zip(&grips) {
        // What a handler commits by itself must not be committed before the completions of earlier deliveries.
        if completions.lost || grip.is_lost() || (node.has_transactions(event) && !completions.flush().await) {
            break;
        }
        begun += 1;
        match attempt(&in_hand, event, grip, Some(&[])).await {
            AttemptEnd::Committed => {}
            AttemptEnd::Report(report) if grip.is_lost() => {
                drop(report);
                tell_lost(event);
                break;
            }
            AttemptEnd::Report(report) if matches!(report.outcome, Outcome::Done | Outcome::DoneWithErrors) => {
                completions.add(event.clone(), report).await;
            }
            AttemptEnd::Report(report) => {
                if completions.flush().await {
                    settle(&node, event, report).await;
                }
                break;
            }
            AttemptEnd::Lost => {
                tell_lost(event);
                break;
            }
        }
    }
    completions.flush().await;
    // The database has released the others, unless the answer to a commit was lost.
    if let Some(next) = run.get(begun) {
        settle(&node, next, Report::new(Outcome::Release)).await;
    }
    drop(holds);
}

/// The completions of a run, committed in order while later deliveries are handled.
struct Completions {
    node: Arc<Shared>,
    waiting: Vec<(Envelope, Report)>,
    /// The batch that is being committed. It returns whether the lease was still held.
    committing: Option<JoinHandle<bool>>,
    /// The lease is lost, and with it all deliveries of the run that are not completed.
    lost: bool,
}

impl Completions {
    fn new(node: &Arc<Shared>) -> Completions {
        Completions { node: node.clone(), waiting: Vec::new(), committing: None, lost: false }
    }

    /// Adds one, and begins to commit what waits unless a batch is being committed.
    async fn add(&mut self, event: Envelope, report: Report) {
        self.waiting.push((event, report));
        if self.committing.as_ref().is_none_or(JoinHandle::is_finished) {
            self.next_batch().await;
        }
    }

    /// Waits until all are committed. `false`: the lease is lost.
    async fn flush(&mut self) -> bool {
        while !self.lost && (self.committing.is_some() || !self.waiting.is_empty()) {
            self.next_batch().await;
        }
        !self.lost
    }

    /// Waits for the batch that is being committed, then begins the next one if there is any.
    async fn next_batch(&mut self) {
        if let Some(committing) = self.committing.take() {
            // A task that was cut off has not committed: the runtime is ending.
            self.lost |= !committing.await.unwrap_or(false);
        }
        if !self.lost && !self.waiting.is_empty() {
            let (node, batch) = (self.node.clone(), std::mem::take(&mut self.waiting));
            self.committing = Some(tokio::spawn(async move { commit(&node, batch).await }));
        }
    }
}

/// Reports until all are on record. `false`: the lease is lost.
async fn commit(node: &Shared, batch: Vec<(Envelope, Report)>) -> bool {
    let mut pause = Pause::after_a_failed_report();
    loop {
        let reports = batch.iter().map(|(event, report)| (LeasedEvent::from(&*event.0), report.clone())).collect();
        let answers = match node.queue.finish_all(reports).await {
            Ok(answers) => answers,
            Err(error) if error.is_temporary() => {
                let events = batch.len();
                tracing::warn!(%error, events, "could not report the end of a run of events; trying again");
                pause.wait().await;
                continue;
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        for ((event, report), answer) in batch.iter().zip(answers) {
            match answer {
                Ok(Finished::Applied(_) | Finished::Repeated(_)) => {}
                Ok(Finished::Lost) => {
                    tell_lost(event);
                    return false;
                }
                // By itself, it is reported until it is on record.
                Err(_) => settle(node, event, report.clone()).await,
            }
        }
        return true;
    }
}
