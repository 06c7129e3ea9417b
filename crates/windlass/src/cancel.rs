//! Calling off what has not begun.

use crate::change::{apply_counted, change};
use crate::decide::Transition;
use crate::delivery::Status;
use crate::error::{Error, Result};
use crate::outcome::Action;
use crate::queue::Queue;
use crate::store::Guard;

impl Queue {
    /// Calls off the event's waiting deliveries: of one subscription, or of all. How many; an error if
    /// there is none.
    pub async fn cancel(&self, event_id: i64, subscription: Option<&str>) -> Result<usize> {
        let topology = match subscription {
            Some(name) => self.topology_with(name).await?,
            None => self.topology().await?,
        };
        let mut meant = self.get(event_id).await?.deliveries;
        meant.retain(|delivery| subscription.is_none_or(|name| name == delivery.subscription));
        let holders: Vec<_> = meant.iter().map(|delivery| self.anyone(event_id, &delivery.subscription)).collect();
        let found = self.store().held(self.namespace(), &holders).await?;
        let waiting = found.into_iter().flatten().filter(|live| live.lease.is_none());
        let decided = || (Action::Cancelled, Transition::End { forget: false });
        let changes: Vec<_> = waiting.map(|live| change(&topology, live, Guard::Free, decided())).collect();
        match apply_counted(self.core(), self.namespace(), &changes).await? {
            0 => {
                let status = meant.first().map_or(Status::Completed, |delivery| delivery.status);
                let (action, allowed) = ("cancelled", "PENDING");
                Err(Error::WrongStatus { event_id, status: status.as_str(), action, allowed })
            }
            cancelled => Ok(cancelled),
        }
    }
}
