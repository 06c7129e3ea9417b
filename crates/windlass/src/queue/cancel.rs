//! Cancels pending deliveries: of one event, or all that match a filter.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::event::delivery::{LiveDelivery, Status};
use crate::observe::inspect::check_filter;
use crate::queue::Queue;
use crate::queue::change::{apply_counted, change};
use crate::queue::decide::Transition;
use crate::queue::outcome::Action;
use crate::store::ChangeGuard;
use crate::topology::Topology;
use crate::topology::lanes::LaneFilter;

/// The maximum number of deliveries that one transaction cancels.
const BATCH: usize = 500;

/// Selects pending deliveries to cancel. Empty lists and `None` do not restrict the selection.
#[derive(Debug, Clone, Default)]
pub struct CancelFilter {
    /// Deliveries of these events.
    pub event_ids: Vec<i64>,
    /// Deliveries of events with any of these types: exact names, or prefixes that end in `*`.
    pub types: Vec<String>,
    /// Deliveries of events with any of these tags.
    pub tags: Vec<String>,
    /// Deliveries to this subscription.
    pub subscription: Option<String>,
    /// Deliveries of events with an id up to this one. Excludes events that were published after the caller listed
    /// them.
    pub up_to: Option<i64>,
}

impl Queue {
    /// Cancels the event's pending deliveries to one subscription, or to all. Returns how many; fails if there is none.
    pub async fn cancel(&self, event_id: i64, subscription: Option<&str>) -> Result<usize> {
        match subscription {
            Some(name) => self.topology_with(name).await?,
            None => self.topology().await?,
        };
        let mut deliveries = self.get(event_id).await?.deliveries;
        deliveries.retain(|delivery| subscription.is_none_or(|name| name == delivery.subscription));
        let holders: Vec<_> = deliveries.iter().map(|delivery| self.anyone(event_id, &delivery.subscription)).collect();
        let found = self.store().held(self.namespace(), &holders).await?;
        let pending = found.into_iter().flatten().filter(|live| live.lease.is_none());
        match self.cancel_pending(pending).await? {
            0 => {
                let status = deliveries.first().map_or(Status::Completed, |delivery| delivery.status);
                let (action, allowed) = ("cancelled", "PENDING");
                Err(Error::WrongStatus { event_id, status: status.as_str(), action, allowed })
            }
            cancelled => Ok(cancelled),
        }
    }

    /// Cancels every matching delivery that is pending when this is called. Returns how many.
    pub async fn cancel_all(&self, filter: CancelFilter) -> Result<usize> {
        let (ids, max) = (filter.event_ids.len(), self.limits().page_max);
        if ids > max {
            return Err(Error::invalid("event_ids", format!("has {ids} entries; the limit is {max}")));
        }
        check_filter(&filter.types, &filter.tags, self.limits())?;
        self.check_subscription_filter(filter.subscription.as_deref()).await?;
        if !self.route_arrivals().await? {
            let detail = "another process is routing events that were published in transactions".to_owned();
            return Err(Error::DatabaseLocked { detail });
        }
        let topology = self.reload().await?;
        if !filter.event_ids.is_empty() {
            return self.cancel_by_id(&topology, &filter).await;
        }
        let lanes: Vec<i64> = self.lanes_of(&topology, &filter).await?.into_iter().collect();
        let newest = self.store().newest_event(self.namespace()).await?;
        let newest = filter.up_to.map_or(newest, |up_to| up_to.min(newest));
        let mut cancelled = 0;
        // Repeat: canceling the first delivery of a group moves the next one to a position that was passed already.
        loop {
            match self.cancel_in_lanes(&lanes, newest).await? {
                0 => return Ok(cancelled),
                more => cancelled += more,
            }
        }
    }

    async fn cancel_by_id(&self, topology: &Topology, filter: &CancelFilter) -> Result<usize> {
        let is_selected = |name: &str| filter.subscription.as_ref().is_none_or(|wanted| wanted == name);
        let names = topology.subscriptions.iter().map(|found| found.subscription.as_str());
        let names: Vec<&str> = names.filter(|name| is_selected(name)).collect();
        let of_event = |event_id: &i64| names.iter().map(|name| self.anyone(*event_id, name)).collect::<Vec<_>>();
        let selected = filter.event_ids.iter().filter(|event_id| filter.up_to.is_none_or(|up_to| **event_id <= up_to));
        // A set, because an id may be repeated.
        let event_ids: BTreeSet<&i64> = selected.collect();
        let holders: Vec<_> = event_ids.into_iter().flat_map(of_event).collect();
        let lanes = self.lanes_of(topology, filter).await?;
        let mut cancelled = 0;
        for holders in holders.chunks(BATCH) {
            let found = self.store().held(self.namespace(), holders).await?.into_iter().flatten();
            let pending = found.filter(|live| live.lease.is_none() && lanes.contains(&live.lane_id));
            cancelled += self.cancel_pending(pending).await?;
        }
        Ok(cancelled)
    }

    /// The ids of the lanes that match the filter, in order.
    async fn lanes_of(&self, topology: &Topology, filter: &CancelFilter) -> Result<BTreeSet<i64>> {
        self.core().list_lanes(topology).await?;
        let (types, tags) = (&filter.types[..], &filter.tags[..]);
        let is_selected = |name: &str| filter.subscription.as_ref().is_none_or(|wanted| wanted == name);
        let subscriptions = topology.subscriptions.iter().filter(|found| is_selected(&found.subscription));
        let lanes = subscriptions.flat_map(|found| {
            let of_subscription = LaneFilter { subscription_id: found.subscription_id, types, tags };
            self.core().lanes.select(topology, &of_subscription, 0).0
        });
        Ok(lanes.map(|lane| lane.lane_id).collect())
    }

    /// Cancels in one pass through these lanes. Returns how many.
    async fn cancel_in_lanes(&self, mut lanes: &[i64], newest: i64) -> Result<usize> {
        let (mut after, mut cancelled) = (None, 0);
        while !lanes.is_empty() {
            let found = self.store().pending_in_lanes(self.namespace(), lanes, after, newest, BATCH).await?;
            let Some((last, position)) = found.last() else { break };
            let lane = lanes.iter().position(|lane_id| *lane_id == last.lane_id);
            (lanes, after) = (&lanes[lane.unwrap_or(lanes.len())..], Some(*position));
            cancelled += self.cancel_pending(found.into_iter().map(|(live, _)| live)).await?;
        }
        Ok(cancelled)
    }

    async fn cancel_pending(&self, pending: impl Iterator<Item = LiveDelivery>) -> Result<usize> {
        let decided = || (Action::Cancelled, Transition::End { forget: false });
        let changes: Vec<_> = pending.map(|live| change(live, ChangeGuard::Pending, decided())).collect();
        apply_counted(self.core(), self.namespace(), &changes).await
    }
}
