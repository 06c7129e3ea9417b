//! Upkeep that every process may do at any time; guards make each change happen once.

use std::time::Duration;

use crate::error::Result;
use crate::event::tag_set;
use crate::queue::change::{apply_counted, change};
use crate::queue::decide::{decide_abandoned, decide_expired};
use crate::queue::publish::route_to;
use crate::queue::wake::ReadyLane;
use crate::queue::{Core, Queue};
use crate::store::{ChangeGuard, NewDelivery};
use crate::topology::Subscription;

/// How long a node is remembered that is not heard of.
const NODE_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long it is on record what a schedule fired. One that ticks each second has 600,000 ticks in this time; and by as
/// much the clock may be put back without that any of them happens again.
const FIRES_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long it is remembered that somebody asked for events.
const CONSUMERS_KEPT: Duration = Duration::from_secs(3600);

/// How long an empty lane stays after it was created.
const EMPTY_LANE_KEPT: Duration = Duration::from_secs(600);

/// How many deliveries one statement of maintenance takes.
const BATCH: usize = 500;
/// How many empty lanes one statement removes. Each removal makes all processes reload the namespace.
const LANES_BATCH: usize = 20_000;

impl Queue {
    /// Releases every delivery whose lease has expired, and dead-letters those that were claimed too often; how many.
    pub async fn release_expired_once(&self) -> Result<usize> {
        self.reload().await?;
        release_expired(self.core(), self.namespace()).await
    }

    /// Buries every waiting delivery whose deadline has passed; how many.
    pub async fn expire_once(&self) -> Result<usize> {
        self.reload().await?;
        let mut expired = 0;
        loop {
            let found = self.store().expired(self.namespace(), BATCH, self.now()).await?;
            let last = found.len() < BATCH;
            let changes = found.into_iter().map(|live| change(live, ChangeGuard::Free, decide_expired()));
            expired += apply_counted(self.core(), self.namespace(), &changes.collect::<Vec<_>>()).await?;
            if last {
                return Ok(expired);
            }
        }
    }

    /// Goes on adding past events to subscriptions that began in the past; how many deliveries.
    pub async fn backfill_once(&self) -> Result<usize> {
        let mut added = 0;
        for subscription in &self.reload().await?.subscriptions {
            added += self.backfill(subscription).await?;
        }
        Ok(added)
    }

    /// Deletes what nobody needs any more: handler results of deliveries that are gone, nodes that were not heard of
    /// for a week, keys whose window is over, what schedules fired a week ago, who asked for events an hour ago, and lanes
    /// without deliveries; how many.
    pub async fn prune_once(&self) -> Result<usize> {
        self.reload().await?;
        let mut pruned = self.remove_empty_lanes().await?;
        loop {
            let batch = self.store().prune(self.namespace(), NODE_KEPT, BATCH, self.now()).await?;
            let fires = self.store().prune_fires(self.namespace(), FIRES_KEPT, BATCH, self.now()).await?;
            let consumers = self.store().prune_consumers(self.namespace(), CONSUMERS_KEPT, BATCH, self.now()).await?;
            pruned += batch + fires + consumers;
            if batch < BATCH && fires < BATCH && consumers < BATCH {
                return Ok(pruned);
            }
        }
    }

    async fn remove_empty_lanes(&self) -> Result<usize> {
        let mut removed = 0;
        loop {
            let (store, kept) = (self.store(), EMPTY_LANE_KEPT);
            let batch = store.remove_empty_lanes(self.namespace(), kept, LANES_BATCH, self.now()).await?;
            removed += batch;
            if batch < LANES_BATCH {
                break;
            }
        }
        if removed > 0 {
            self.changed().await?;
        }
        Ok(removed)
    }

    pub(crate) async fn backfill(&self, subscription: &Subscription) -> Result<usize> {
        let (mut added, mut from) = (0, subscription.backfill_from);
        while let Some(start) = from {
            let past = self.store().past_events(self.namespace(), subscription, start, BATCH).await?;
            let mut wanted = Vec::new();
            for event in past.events {
                let tags = tag_set("tags", &event.tags, self.limits())?;
                if subscription.wants(&event.event_type, &tags) {
                    let name = &subscription.subscription;
                    let delivery = self.route_one(name, &event.event_type, &tags, event.priority).await?;
                    wanted.push((event, delivery));
                }
            }
            let name = &subscription.subscription;
            if !self.store().backfill(self.namespace(), name, &wanted, start, past.next, self.now()).await? {
                break;
            }
            added += wanted.len();
            let lanes = wanted.iter().map(|(_, delivery)| ReadyLane { rewind: true, ..delivery.ready_lane() });
            self.core().wakes.notify(self.namespace(), lanes);
            from = past.next;
        }
        Ok(added)
    }

    /// The delivery of a stored event to one subscription; makes its lane where it is missing.
    pub(crate) async fn route_one(
        &self,
        subscription: &str,
        event_type: &str,
        tags: &[String],
        priority: i16,
    ) -> Result<NewDelivery> {
        loop {
            let topology = self.topology_with(subscription).await?;
            let Some(found) = topology.subscription(subscription) else { continue };
            let routed = self
                .core()
                .lanes
                .look_up(&topology, |lane_id| route_to(&topology, found, event_type, tags, priority, lane_id));
            match routed {
                Ok(delivery) => return Ok(delivery),
                Err(lane) => self.core().add_lanes(&topology, vec![lane]).await?,
            }
        }
    }
}

/// Releases the deliveries of the namespace whose lease has expired; how many. This is the only place that does so.
pub(crate) async fn release_expired(core: &Core, namespace: &str) -> Result<usize> {
    let mut released = 0;
    loop {
        let topology = core.topology(namespace).await?;
        let subscriptions: Vec<i64> = topology.subscriptions.iter().map(|found| found.subscription_id).collect();
        let expired = core.store.expired_leases(namespace, &subscriptions, BATCH, core.clock.overridden()).await?;
        if expired.is_empty() {
            return Ok(released);
        }
        let leased = expired.into_iter().filter_map(|live| live.lease.map(|lease| (live, lease)));
        let changes = leased.map(|(live, lease)| {
            let decided = decide_abandoned(&live);
            change(live, ChangeGuard::ExpiredLease(lease), decided)
        });
        released += apply_counted(core, namespace, &changes.collect::<Vec<_>>()).await?;
    }
}
