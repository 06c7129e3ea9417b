//! While a delivery is held: saying that work began, and holding it for longer.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::delivery::LiveDelivery;
use crate::policy::LEASE_MAX;
use crate::queue::Queue;
use crate::queue::finish::LeasedEvent;

impl Queue {
    /// Notes that work on the delivery began. `None`: the lease is lost.
    pub async fn start(&self, held: impl Into<LeasedEvent>) -> Result<Option<Timestamp>> {
        let Some(live) = self.live(held.into()).await? else { return Ok(None) };
        let started = self.store().start(self.namespace(), &[live], self.now()).await?;
        Ok(started.into_iter().next().flatten())
    }

    /// Holds the delivery until `lease` from now, by default the policy's lease. `None`: it is lost.
    pub async fn extend(&self, held: impl Into<LeasedEvent>, lease: Option<Duration>) -> Result<Option<Timestamp>> {
        let mut extended = self.extend_all(vec![held.into()], lease).await?;
        extended.pop().ok_or(Error::Closed)
    }

    /// Holds many deliveries for longer, each with its own result.
    pub async fn extend_all(&self, held: Vec<LeasedEvent>, lease: Option<Duration>) -> Result<Vec<Option<Timestamp>>> {
        if lease.is_some_and(|lease| lease > LEASE_MAX || lease.is_zero()) {
            return Err(Error::invalid("lease_ms", "must be from 1 to 604800000, a week"));
        }
        let found = self.find_all(held).await?;
        let topology = self.topology().await?;
        let leased: Vec<(LiveDelivery, Duration)> = found
            .iter()
            .flatten()
            .map(|live| (live.clone(), lease.unwrap_or_else(|| topology.policy_of(live).lease())))
            .collect();
        let mut extended = self.store().extend(self.namespace(), &leased, self.now()).await?.into_iter();
        Ok(found.iter().map(|live| live.as_ref().and_then(|_| extended.next().flatten())).collect())
    }

    async fn live(&self, held: LeasedEvent) -> Result<Option<LiveDelivery>> {
        Ok(self.find_all(vec![held]).await?.pop().flatten())
    }

    /// The live deliveries behind these; an error where the event does not exist at all.
    async fn find_all(&self, held: Vec<LeasedEvent>) -> Result<Vec<Option<LiveDelivery>>> {
        let known: Vec<Option<LiveDelivery>> = held.iter().map(LeasedEvent::live).collect();
        if known.iter().all(Option::is_some) {
            return Ok(known);
        }
        held.iter().try_for_each(LeasedEvent::check)?;
        let holders: Vec<_> = held.into_iter().map(LeasedEvent::into_holder).collect();
        let found = self.store().held(self.namespace(), &holders).await?;
        for (holder, live) in holders.iter().zip(&found) {
            if live.is_none() {
                self.check_exists(holder.event_id).await?;
            }
        }
        Ok(found)
    }
}
