//! Calling off what has not begun.

use crate::decide::Transition;
use crate::delivery::Status;
use crate::error::{Error, Result};
use crate::finish;
use crate::outcome::Action;
use crate::queue::Queue;
use crate::store::{Change, Guard, Record};

impl Queue {
    /// Calls off the event's waiting deliveries: of one subscription, or of all. How many; an error if
    /// there is none.
    pub async fn cancel(&self, event_id: i64, subscription: Option<&str>) -> Result<usize> {
        let view = self.get(event_id).await?;
        let meant =
            view.deliveries.iter().filter(|delivery| subscription.is_none_or(|name| name == delivery.subscription));
        let meant: Vec<_> = meant.collect();
        let holders: Vec<_> = meant.iter().map(|delivery| self.anyone(event_id, &delivery.subscription)).collect();
        let found = self.store().held(self.namespace(), &holders).await?;
        let waiting = found.into_iter().flatten().filter(|live| live.lease.is_none());
        let changes: Vec<Change> = waiting
            .map(|live| Change {
                live,
                guard: Guard::Free,
                pass_group: false,
                action: Action::Cancelled,
                transition: Transition::End { forget: false },
                record: Record::default(),
            })
            .collect();
        let applied = finish::transition(self.core(), self.namespace(), &changes).await?;
        match applied.iter().flatten().count() {
            0 => {
                let status = meant.first().map_or(Status::Completed, |delivery| delivery.status);
                let (action, allowed) = ("cancelled", "PENDING");
                Err(Error::WrongStatus { event_id, status: status.as_str(), action, allowed })
            }
            cancelled => Ok(cancelled),
        }
    }
}
