//! Reports during an attempt: that work has started, and lease renewals.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::delivery::LiveDelivery;
use crate::policy::LEASE_MAX;
use crate::queue::Queue;
use crate::queue::finish::LeasedEvent;

impl Queue {
    /// Records that work on the delivery has started, and returns the time. `None`: the lease is lost.
    pub async fn start(&self, leased: impl Into<LeasedEvent>) -> Result<Option<Timestamp>> {
        let Some(live) = self.find_all(vec![leased.into()]).await?.pop().flatten() else { return Ok(None) };
        let started = self.store().start(self.namespace(), &[live], self.now()).await?;
        Ok(started.into_iter().next().flatten())
    }

    /// Renews the lease for `lease` from now, by default the policy's lease. Returns the new expiry. `None`: the lease
    /// is lost.
    pub async fn extend(&self, leased: impl Into<LeasedEvent>, lease: Option<Duration>) -> Result<Option<Timestamp>> {
        let mut extended = self.extend_all(vec![leased.into()], lease).await?;
        extended.pop().ok_or(Error::Closed)
    }

    /// Renews many leases, as [`Queue::extend`] does, each with its own result.
    pub async fn extend_all(
        &self,
        leased: Vec<LeasedEvent>,
        lease: Option<Duration>,
    ) -> Result<Vec<Option<Timestamp>>> {
        if lease.is_some_and(|lease| lease > LEASE_MAX || lease.is_zero()) {
            return Err(Error::invalid("lease_ms", "must be from 1 to 604800000, a week"));
        }
        let found = self.find_all(leased).await?;
        let topology = self.topology().await?;
        let renewals: Vec<(LiveDelivery, Duration)> = found
            .iter()
            .flatten()
            .map(|live| (live.clone(), lease.unwrap_or_else(|| topology.policy_of(live).lease())))
            .collect();
        let mut extended = self.store().extend(self.namespace(), &renewals, self.now()).await?.into_iter();
        Ok(found.iter().map(|live| live.as_ref().and_then(|_| extended.next().flatten())).collect())
    }

    /// Finds the deliveries; `None` where the lease is lost. Fails if an event does not exist.
    async fn find_all(&self, leased: Vec<LeasedEvent>) -> Result<Vec<Option<LiveDelivery>>> {
        let known: Vec<Option<LiveDelivery>> = leased.iter().map(LeasedEvent::live).collect();
        if known.iter().all(Option::is_some) {
            return Ok(known);
        }
        leased.iter().try_for_each(LeasedEvent::check)?;
        let holders: Vec<_> = leased.into_iter().map(LeasedEvent::into_holder).collect();
        let found = self.store().held(self.namespace(), &holders).await?;
        for (holder, live) in holders.iter().zip(&found) {
            if live.is_none() {
                self.check_exists(holder.event_id).await?;
            }
        }
        Ok(found)
    }
}
