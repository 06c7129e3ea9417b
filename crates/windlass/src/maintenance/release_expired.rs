//! Maintenance of pending and leased deliveries: expired leases, deadlines, backfill, and pruning of small tables.
//!
//! Any process may run these at any time; guards make sure that each change is applied once.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::event::{Event, tag_set};
use crate::queue::change::{apply_counted, change};
use crate::queue::decide::{decide_abandoned, decide_expired};
use crate::queue::publish::route_to;
use crate::queue::wake::ReadyLane;
use crate::queue::{Core, Queue};
use crate::store::{ChangeGuard, NewDelivery};
use crate::topology::Subscription;

/// How long a node without a heartbeat is kept.
const NODE_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long fired ticks are kept. A schedule that ticks every second has 600,000 rows. If the clock moves back by less
/// than this, no tick fires again.
const FIRES_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a consumer without claim requests is kept.
const CONSUMERS_KEPT: Duration = Duration::from_secs(3600);

/// How long an empty lane is kept after its creation.
const EMPTY_LANE_KEPT: Duration = Duration::from_secs(600);

/// How many deliveries or rows one statement processes.
const BATCH: usize = 500;
/// How many empty lanes one statement removes. After a removal all processes reload the namespace.
const LANES_BATCH: usize = 20_000;

impl Queue {
    /// Releases deliveries whose lease has expired, and dead-letters those that have no attempt left. Returns how many.
    pub async fn release_expired_once(&self) -> Result<usize> {
        self.reload().await?;
        release_expired(self.core(), self.namespace()).await
    }

    /// Dead-letters pending deliveries whose deadline has passed. Returns how many.
    pub async fn expire_once(&self) -> Result<usize> {
        self.reload().await?;
        let mut expired = 0;
        loop {
            let found = self.store().expired_deliveries(self.namespace(), BATCH, self.now()).await?;
            let is_last = found.len() < BATCH;
            let changes = found.into_iter().map(|live| change(live, ChangeGuard::Pending, decide_expired()));
            expired += apply_counted(self.core(), self.namespace(), &changes.collect::<Vec<_>>()).await?;
            if is_last {
                return Ok(expired);
            }
        }
    }

    /// Continues the backfill of subscriptions that start in the past. Returns how many deliveries were added.
    pub async fn backfill_once(&self) -> Result<usize> {
        let mut added = 0;
        for subscription in &self.reload().await?.subscriptions {
            added += self.backfill(subscription).await?;
        }
        Ok(added)
    }

    /// Deletes obsolete rows: handler results of deleted deliveries, nodes without a heartbeat for a week, keys whose
    /// deduplication window has ended, schedule ticks older than a week, consumers without a request for an hour, and
    /// empty lanes. Returns how many.
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
            self.topology_changed().await?;
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
            let wanted: Arc<[(Event, NewDelivery)]> = wanted.into();
            if !self.store().backfill(self.namespace(), name, wanted.clone(), start, past.next, self.now()).await? {
                break;
            }
            added += wanted.len();
            let lanes = wanted.iter().map(|(_, delivery)| ReadyLane { rewind: true, ..delivery.ready_lane() });
            self.core().wakes.notify(self.namespace(), lanes);
            from = past.next;
        }
        Ok(added)
    }

    /// Routes a stored event to one subscription. Creates the lane if it is missing.
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

/// Releases the deliveries of the namespace whose lease has expired. Returns how many. No other code does this.
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
