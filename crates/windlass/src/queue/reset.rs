//! Taking a delivery from its worker by hand.

use crate::error::{Error, Result};
use crate::event::delivery::Status;
use crate::event::names;
use crate::observe::inspect::DeadLetterFilter;
use crate::queue::Queue;
use crate::queue::change::{apply_counted, change};
use crate::queue::decide::{Transition, When};
use crate::queue::outcome::Action;
use crate::store::ChangeGuard;

impl Queue {
    /// Returns a delivery that is PROCESSING to PENDING at once, logging the reason; its worker can no
    /// longer finish it. One that is FAILED or EXPIRED is redriven.
    pub async fn reset(&self, event_id: i64, subscription: &str, reason: &str) -> Result<()> {
        names::check("reason", reason)?;
        self.topology_with(subscription).await?;
        let holder = self.anyone(event_id, subscription);
        let found = self.store().held(self.namespace(), &[holder]).await?.into_iter().next().flatten();
        match found.and_then(|live| live.lease.map(|lease| (live, lease))) {
            Some((live, lease)) => {
                let mut reset = change(live, ChangeGuard::Lease(lease), (Action::Reset, taken_away()));
                reset.record.error = Some(reason.to_owned());
                match apply_counted(self.core(), self.namespace(), &[reset]).await? {
                    0 => self.not_resettable(event_id, subscription).await,
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
        if self.redrive(filter).await? == 1 { Ok(()) } else { self.not_resettable(event_id, subscription).await }
    }

    async fn not_resettable(&self, event_id: i64, subscription: &str) -> Result<()> {
        let status: Status = self.ended_status(event_id, subscription).await?;
        let (action, allowed) = ("reset", "PROCESSING, FAILED or EXPIRED");
        Err(Error::WrongStatus { event_id, status: status.as_str(), action, allowed })
    }
}

/// It keeps its place, and the acquisition counts.
fn taken_away() -> Transition {
    Transition::Requeue { when: When::Unchanged, failed: false, free: false, pass_group: false }
}
