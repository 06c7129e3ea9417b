//! Resets a delivery: an operator takes it away from its worker.

use crate::error::{Error, Result};
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::inspect::DeadLetterFilter;
use crate::queue::Queue;
use crate::queue::change::{apply_counted, change};
use crate::queue::decide::{RequeueTime, Transition};
use crate::queue::outcome::Action;
use crate::store::ChangeGuard;

impl Queue {
    /// Returns a PROCESSING delivery to PENDING and logs the reason. Its worker can no longer finish it. Redrives a
    /// FAILED or EXPIRED delivery.
    pub async fn reset(&self, event_id: i64, subscription: &str, reason: &str) -> Result<()> {
        names::check("reason", reason)?;
        self.topology_with(subscription).await?;
        let holder = self.anyone(event_id, subscription);
        let found = self.store().held(self.namespace(), &[holder]).await?.into_iter().next().flatten();
        match found.and_then(|live| live.lease.map(|lease| (live, lease))) {
            Some((live, lease)) => {
                let mut reset = change(live, ChangeGuard::Lease(lease), (Action::Reset, reset_transition()));
                reset.record.error = Some(reason.to_owned());
                match apply_counted(self.core(), self.namespace(), &[reset]).await? {
                    0 => self.wrong_status(event_id, subscription).await,
                    _ => Ok(()),
                }
            }
            None => self.reset_dead(event_id, subscription).await,
        }
    }

    async fn reset_dead(&self, event_id: i64, subscription: &str) -> Result<()> {
        let filter = DeadLetterFilter {
            event_ids: vec![event_id],
            subscription: Some(subscription.to_owned()),
            ..DeadLetterFilter::default()
        };
        if self.redrive(filter).await? == 1 { Ok(()) } else { self.wrong_status(event_id, subscription).await }
    }

    async fn wrong_status(&self, event_id: i64, subscription: &str) -> Result<()> {
        let status: Status = self.ended_status(event_id, subscription).await?;
        let (action, allowed) = ("reset", "PROCESSING, FAILED or EXPIRED");
        Err(Error::WrongStatus { event_id, status: status.as_str(), action, allowed })
    }
}

/// The delivery keeps its position, and the attempt counts.
fn reset_transition() -> Transition {
    Transition::Requeue { when: RequeueTime::Unchanged, failed: false, refund_attempt: false, pass_group: false }
}
